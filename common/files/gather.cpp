// Permutation of rows of bytes. An index outside of the rows, or a result of another size, gives -1.
// Nothing is read or written outside of the arrays, whose sizes the caller gives.

#include <cstdint>
#include <cstring>

namespace {

constexpr long kAhead = 16;  // rows whose bytes are asked for ahead: they are anywhere in the unit

// Inlined: a constant width makes the copy one instruction or two.
[[gnu::always_inline]] inline long take(const char* rows, long num_rows, long width, const int64_t* order, long num,
                                        char* out) {
  for (long i = 0; i < num; ++i) {
    const int64_t row = order[i];
    if (row < 0 || row >= num_rows) return -1;
    std::memcpy(out + i * width, rows + row * width, width);
  }
  return 0;
}

}  // namespace

// out[i] = rows[order[i]], rows of `width` bytes.
extern "C" long take_rows(const char* rows, long num_rows, long width, const int64_t* order, long num, char* out) {
  switch (width) {
    case 1: return take(rows, num_rows, 1, order, num, out);
    case 4: return take(rows, num_rows, 4, order, num, out);
    case 8: return take(rows, num_rows, 8, order, num, out);
    case 12: return take(rows, num_rows, 12, order, num, out);
    case 16: return take(rows, num_rows, 16, order, num, out);
    default: return take(rows, num_rows, width, order, num, out);
  }
}

// Particles of rows order[0], order[1], ... one after the other. Row r has particles offsets[r] to offsets[r + 1], of
// `width` bytes each; offsets ascend from 0 to num_particles. The result must have num_out particles.
extern "C" long take_particles(const char* particles, const int64_t* offsets, long num_rows, long width,
                               const int64_t* order, long num, char* out, long num_out) {
  char* at = out;
  char* const end = out + num_out * width;
  for (long i = 0; i < num; ++i) {
    if (i + kAhead < num) {
      const int64_t ahead = order[i + kAhead];
      if (ahead >= 0 && ahead < num_rows) __builtin_prefetch(particles + offsets[ahead] * width);
    }
    const int64_t row = order[i];
    if (row < 0 || row >= num_rows) return -1;
    const char* from = particles + offsets[row] * width;
    const long bytes = (offsets[row + 1] - offsets[row]) * width;
    if (bytes > end - at) return -1;
    // Short rows by fixed-size copies, which may run over into what the next rows fill, and past the source's row as
    // long as both stay inside of the arrays: a call of memcpy costs as much as 64 bytes.
    if (bytes <= 64 && end - at >= 64 && offsets[num_rows] * width - offsets[row] * width >= 64) {
      std::memcpy(at, from, 64);
    } else {
      std::memcpy(at, from, bytes);
    }
    at += bytes;
  }
  return at == end ? 0 : -1;
}
