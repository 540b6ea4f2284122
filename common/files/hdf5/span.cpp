// Rows of flat tables, each in one piece of a file: ids compared, numbers cut out and checked, fillers dropped, in one
// pass. What is unusual or wrong gives kUnusual, and numpy decides. float32, two ids.

#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace {

constexpr long kUnusual = -1;
constexpr long kIdBytes = 8;
constexpr long kItem = 4;

// False if the file ends before, or can't be read.
bool read_all(int file, char* out, long size, int64_t at) {
  while (size > 0) {
    const ssize_t got = pread(file, out, size, at);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    out += got;
    at += got;
    size -= got;
  }
  return true;
}

float number(const char* at) {
  float found;
  std::memcpy(&found, at, kItem);
  return found;
}

uint64_t ids_of(const char* row) {
  uint64_t found;
  std::memcpy(&found, row, kIdBytes);
  return found;
}

// Zeros behind the ids, of either sign.
bool is_zero(const char* numbers, long width) {
  bool found = true;
  for (long i = 0; i < width; ++i) found &= number(numbers + i * kItem) == 0.0f;
  return found;
}

template <long kWidth>
bool is_finite(const char* numbers) {
  // x - x is 0 of a finite number, else NaN: one comparison for all.
  bool found = true;
  for (long i = 0; i < kWidth; ++i) {
    const float x = number(numbers + i * kItem);
    found &= (x - x) == 0.0f;
  }
  return found;
}

template <long kWidth>
long particles(int file, int64_t at, long num, const int64_t* counts, long rows, const char* events, long event_bytes,
               long positive, char* buffer, long buffer_bytes, int64_t* kept_counts, char* out) {
  constexpr long kOut = kWidth * kItem, kRow = kIdBytes + kOut;
  const long most = buffer_bytes / kRow;
  const char* const begin = out;
  const char *from = buffer, *end = buffer;
  long unread = num;
  bool all_finite = true;
  for (long row = 0; row < rows; ++row) {
    const uint64_t ids = ids_of(events + row * event_bytes);
    const int64_t count = counts[row];
    int64_t kept = 0;
    for (int64_t left = count; left > 0;) {
      if (from == end) {
        const long next = unread < most ? unread : most;
        if (next <= 0 || !read_all(file, buffer, next * kRow, at)) return kUnusual;
        at += next * kRow;
        unread -= next;
        from = buffer;
        end = buffer + next * kRow;
      }
      const int64_t here = (end - from) / kRow;
      const int64_t some = left < here ? left : here;
      uint64_t wrong = 0;
      for (int64_t i = 0; i < some; ++i, from += kRow) {
        const char* numbers = from + kIdBytes;
        wrong |= ids_of(from) ^ ids;
        all_finite &= is_finite<kWidth>(numbers);
        std::memcpy(out, numbers, kOut);
        const bool keep = number(numbers + positive * kItem) > 0.0f;
        out += keep ? kOut : 0;
        kept += keep;
      }
      if (wrong) {
        // Right if this is the filler of an event without particles.
        const char* filler = from - kRow;
        if (count != 1 || ids_of(filler) != 0 || !is_zero(filler + kIdBytes, kWidth)) return kUnusual;
        out -= kept * kOut;
        kept = 0;
      }
      left -= some;
    }
    kept_counts[row] = kept;
  }
  return all_finite && unread == 0 && from == end ? (out - begin) / kOut : kUnusual;
}

}  // namespace

// Particles of `rows` events, from the offset `at` of the file: how many were kept, or kUnusual.
//
// counts: particles of each event, none negative, num together. events: rows of event_bytes, which begin with the ids.
// positive: number that must be above 0 in a particle, or it is a filler. out: num rows of `width` numbers.
// buffer: memory of at least a row. A particle of zeros that is its event's only one is a filler, too.
extern "C" long read_particles(long file, long at, long num, long width, const int64_t* counts, long rows,
                               const char* events, long event_bytes, long positive, char* buffer, long buffer_bytes,
                               int64_t* kept_counts, char* out) {
  if (buffer_bytes < kIdBytes + width * kItem || event_bytes < kIdBytes) return kUnusual;
  if (positive < 0 || positive >= width) return kUnusual;
  const int descriptor = static_cast<int>(file);
#define PARTICLES(kWidth)                                                                                          \
  case kWidth:                                                                                                     \
    return particles<kWidth>(descriptor, at, num, counts, rows, events, event_bytes, positive, buffer, buffer_bytes, \
                             kept_counts, out)
  switch (width) {
    PARTICLES(1);
    PARTICLES(2);
    PARTICLES(3);
    PARTICLES(4);
    PARTICLES(5);
    PARTICLES(6);
    default: return kUnusual;
  }
#undef PARTICLES
}

// Events' rows of two ids and `width` numbers: 0, or kUnusual if an id is no whole number below 2^63, or if a number is
// not finite, or outside of its limits. least, most: of each number.
extern "C" long split_events(const char* raw, long rows, long width, const float* least, const float* most, char* out,
                             uint64_t* ids) {
  bool good = true;
  for (long row = 0; row < rows; ++row, raw += kIdBytes + width * kItem, out += width * kItem) {
    for (long i = 0; i < 2; ++i) {
      const float id = number(raw + i * kItem);
      if (!(id >= 0.0f && id < 9223372036854775808.0f)) return kUnusual;
      const uint64_t whole = static_cast<uint64_t>(id);
      good &= static_cast<float>(whole) == id;
      ids[2 * row + i] = whole;
    }
    for (long i = 0; i < width; ++i) {
      const float x = number(raw + kIdBytes + i * kItem);
      good &= (x - x) == 0.0f && x >= least[i] && x <= most[i];
    }
    std::memcpy(out, raw + kIdBytes, width * kItem);
  }
  return good ? 0 : kUnusual;
}
