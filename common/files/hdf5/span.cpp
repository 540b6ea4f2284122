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

// Largest bits of `num` floats without their signs: those of a number that is not finite are the largest.
uint32_t largest_bits(const char* floats, long num) {
  uint32_t most = 0;
  for (long i = 0; i < num; ++i) {
    uint32_t bits;
    std::memcpy(&bits, floats + i * kItem, kItem);
    bits &= 0x7fffffff;
    most = bits > most ? bits : most;
  }
  return most;
}

constexpr uint32_t kInfinite = 0x7f800000;

// Whole events of a block. Loops over particles without a branch by event, and over events without one by particle: a
// wrong guess of the processor costs as much as ten particles.
template <long kWidth>
struct Block {
  static constexpr long kOut = kWidth * kItem, kRow = kIdBytes + kOut;

  // Copies the numbers of the particles that are kept; before[i]: how many were kept before particle i of the block.
  // Returns the number of particles whose ids are not those of the one before.
  static long copy(const char* rows, long num, long positive, char* out, int32_t* before) {
    int32_t kept = 0;
    long changes = 0;
    uint64_t last = num ? ~ids_of(rows) : 0;
    for (long i = 0; i < num; ++i) {
      const char* row = rows + i * kRow;
      const uint64_t ids = ids_of(row);
      changes += ids != last;
      last = ids;
      before[i] = kept;
      std::memcpy(out + kept * kOut, row + kIdBytes, kOut);
      kept += number(row + kIdBytes + positive * kItem) > 0.0f;
    }
    before[num] = kept;
    return changes;
  }

  // True if each particle has its event's ids, or is the filler of an event without particles.
  static bool check(const char* rows, long changes, const int64_t* counts, long num_events, const char* events,
                    long event_bytes, const int32_t* before, int64_t* kept) {
    long first = 0, expected = 0;
    bool good = true;
    for (long i = 0; i < num_events; ++i) {
      const long count = counts[i];
      kept[i] = before[first + count] - before[first];
      if (count) {
        const char* row = rows + first * kRow;
        const uint64_t ids = ids_of(row);
        bool is_filler = (count == 1) & (ids == 0);
        for (long k = 0; k < kWidth; ++k) is_filler &= number(row + kIdBytes + k * kItem) == 0.0f;
        good &= (ids == ids_of(events + i * event_bytes)) | is_filler;
        expected += first == 0 || ids != ids_of(row - kRow);
        first += count;
      }
    }
    return good && changes == expected;  // no change inside of an event
  }
};

template <long kWidth>
long particles(int file, int64_t at, long num, const int64_t* counts, long rows, const char* events, long event_bytes,
               long positive, char* buffer, int32_t* before, long most, int64_t* kept_counts, char* out) {
  using Of = Block<kWidth>;
  const char* const begin = out;
  long unread = num;
  for (long row = 0; row < rows;) {
    long in_block = 0, end = row;
    while (end < rows && counts[end] <= most - in_block) in_block += counts[end++];
    if (end == row || in_block > unread) return kUnusual;  // a very large event, or more particles than counted
    if (!read_all(file, buffer, in_block * Of::kRow, at)) return kUnusual;
    at += in_block * Of::kRow;
    unread -= in_block;
    const long changes = Of::copy(buffer, in_block, positive, out, before);
    if (largest_bits(buffer, in_block * (Of::kRow / kItem)) >= kInfinite) return kUnusual;
    if (!Of::check(buffer, changes, counts + row, end - row, events + row * event_bytes, event_bytes, before,
                   kept_counts + row)) {
      return kUnusual;
    }
    out += before[in_block] * Of::kOut;
    row = end;
  }
  return unread == 0 ? (out - begin) / Of::kOut : kUnusual;
}

template <long kWidth>
bool split(const char* raw, long rows, const float* least, const float* most, char* out, int64_t* ids) {
  constexpr long kOut = kWidth * kItem, kRow = kIdBytes + kOut;
  if (largest_bits(raw, rows * (kRow / kItem)) >= kInfinite) return false;
  long good = rows;
  for (long row = 0; row < rows; ++row) {
    for (long i = 0; i < 2; ++i) {
      const float id = number(raw + row * kRow + i * kItem);
      const bool is_small = (id >= 0.0f) & (id < 9223372036854775808.0f);
      const int64_t whole = static_cast<int64_t>(is_small ? id : 0.0f);
      good -= static_cast<float>(whole) != id;
      ids[2 * row + i] = whole;
    }
  }
  float low[kWidth], high[kWidth];
  for (long i = 0; i < kWidth; ++i) low[i] = INFINITY, high[i] = -INFINITY;
  for (long row = 0; row < rows; ++row) {
    float numbers[kWidth];
    std::memcpy(numbers, raw + row * kRow + kIdBytes, kOut);
    for (long i = 0; i < kWidth; ++i) low[i] = numbers[i] < low[i] ? numbers[i] : low[i];
    for (long i = 0; i < kWidth; ++i) high[i] = numbers[i] > high[i] ? numbers[i] : high[i];
    std::memcpy(out + row * kOut, numbers, kOut);
  }
  for (long i = 0; i < kWidth; ++i) good -= (low[i] < least[i]) | (high[i] > most[i]);
  return good == rows;
}

}  // namespace

// Particles of `rows` events, from the offset `at` of the file: how many were kept, or kUnusual.
//
// counts: particles of each event, none negative, num together. events: rows of event_bytes, which begin with the ids.
// positive: number that must be above 0 in a particle, or it is a filler. buffer: memory of `most` particles as
// stored; before: of most + 1 numbers. out: num rows of `width` numbers. A particle of zeros that is its event's only
// one is a filler, too.
extern "C" long read_particles(long file, long at, long num, long width, const int64_t* counts, long rows,
                               const char* events, long event_bytes, long positive, char* buffer, int32_t* before,
                               long most, int64_t* kept_counts, char* out) {
  if (event_bytes < kIdBytes || positive < 0 || positive >= width) return kUnusual;
  const auto read = width == 3 ? particles<3> : width == 4 ? particles<4> : width == 5 ? particles<5> : nullptr;
  if (!read) return kUnusual;
  return read(static_cast<int>(file), at, num, counts, rows, events, event_bytes, positive, buffer, before, most,
              kept_counts, out);
}

// Events' rows of two ids and `width` numbers: 0, or kUnusual if an id is no whole number below 2^63, or if a number is
// not finite, or outside of its limits. least, most: of each number.
extern "C" long split_events(const char* raw, long rows, long width, const float* least, const float* most, char* out,
                             int64_t* ids) {
  const auto of_width = width == 3 ? split<3> : width == 4 ? split<4> : width == 5 ? split<5> : nullptr;
  return of_width && of_width(raw, rows, least, most, out, ids) ? 0 : kUnusual;
}
