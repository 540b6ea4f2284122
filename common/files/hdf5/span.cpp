// Rows of flat tables, each in one piece of a file: ids compared, numbers cut out and checked, fillers dropped, while
// they are in the CPU's cache. What is unusual or wrong gives kUnusual, and numpy decides. float32, two ids.

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>

namespace {

constexpr long kUnusual = -1;
constexpr long kIds = 2;
constexpr long kItem = 4;
constexpr long kIdBytes = kIds * kItem;
constexpr uint32_t kUnsigned = 0x7fffffff;
constexpr uint32_t kInfinite = 0x7f800000;            // a number is not finite if its bits, unsigned, are these or more
constexpr float kLargestId = 9223371487098961920.0f;  // the last below 2^63
constexpr long kMostParticles = 1 << 20;              // of an event: they are read at once

// Events of a file to be read, and where their numbers go.
struct Span {
  int file;
  int64_t events_at, particles_at;  // offsets in the file
  const int64_t* counts;            // particles of each event, none negative
  long rows, num;                   // events, and their particles together
  long block;                       // events, and particles, read at a time: they must still be in the second cache
  const float *least, *most;        // limits of each number of an event
  long positive;                    // number that must be above 0 in a particle, or it is a filler
  char* events;
  int64_t *ids, *kept_counts;
  char* particles;
};

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

template <typename T>
T at_place(const char* at) {
  T found;
  std::memcpy(&found, at, sizeof(T));
  return found;
}

// Events as stored: two ids, then kWidth numbers.
template <long kWidth>
struct Events {
  static constexpr long kNumbers = kIds + kWidth, kRow = kNumbers * kItem;
  static constexpr long kTogether = 8, kLanes = kTogether * kNumbers;  // rows that vector instructions see together

  // False if an id is no whole number below 2^63, or if a number is not finite, or outside of its limits.
  static bool split(const char* rows, long num, const Span& span, char* numbers, int64_t* ids) {
    float low[kLanes], high[kLanes];
    uint32_t largest[kLanes] = {};
    std::fill_n(low, kLanes, INFINITY);
    std::fill_n(high, kLanes, -INFINITY);
    const long together = num / kTogether * kTogether;
    for (long i = 0; i < together; i += kTogether) see<kLanes>(rows + i * kRow, low, high, largest);
    for (long i = together; i < num; ++i) see<kNumbers>(rows + i * kRow, low, high, largest);
    bool good = true;
    for (long k = 0; k < kLanes; ++k) {
      const long place = k % kNumbers - kIds;
      const float least = place < 0 ? 0.0f : span.least[place], most = place < 0 ? kLargestId : span.most[place];
      good &= (largest[k] < kInfinite) & !(low[k] < least) & !(high[k] > most);
    }
    if (!good) return false;
    long fractions = 0;
    for (long i = 0; i < num; ++i) {
      for (long k = 0; k < kIds; ++k) {
        const float id = at_place<float>(rows + i * kRow + k * kItem);
        ids[kIds * i + k] = static_cast<int64_t>(id);
        fractions += static_cast<float>(ids[kIds * i + k]) != id;
      }
      std::memcpy(numbers + i * kWidth * kItem, rows + i * kRow + kIdBytes, kWidth * kItem);
    }
    return fractions == 0;
  }

  template <long kSeen>
  static void see(const char* at, float* __restrict low, float* __restrict high, uint32_t* __restrict largest) {
    for (long k = 0; k < kSeen; ++k) {
      const float found = at_place<float>(at + k * kItem);
      low[k] = found < low[k] ? found : low[k];
      high[k] = found > high[k] ? found : high[k];
      const uint32_t bits = at_place<uint32_t>(at + k * kItem) & kUnsigned;
      largest[k] = bits > largest[k] ? bits : largest[k];
    }
  }
};

// Particles of whole events as stored. Loops over particles without a branch by event, and over events without one by
// particle: a wrong guess of the processor costs as much as ten particles. Before the first row lies another one.
template <long kWidth>
struct Particles {
  static constexpr long kNumbers = kIds + kWidth, kOut = kWidth * kItem, kRow = kIdBytes + kOut;
  static constexpr long kTogether = 16, kLanes = kTogether * kNumbers;

  // Number of ids that are not those of the particle before, or kUnusual if a number is not finite.
  static long changes(const char* rows, long num) {
    uint32_t changed[kLanes] = {}, largest[kLanes] = {};
    const long together = num / kTogether * kTogether;
    for (long i = 0; i < together; i += kTogether) see<kLanes>(rows + i * kRow, changed, largest);
    for (long i = together; i < num; ++i) see<kNumbers>(rows + i * kRow, changed, largest);
    long changes = 0;
    for (long k = 0; k < kLanes; ++k) changes += k % kNumbers < kIds ? changed[k] : 0;
    return *std::max_element(largest, largest + kLanes) < kInfinite ? changes : kUnusual;
  }

  template <long kSeen>
  static void see(const char* at, uint32_t* __restrict changed, uint32_t* __restrict largest) {
    for (long k = 0; k < kSeen; ++k) {
      const uint32_t bits = at_place<uint32_t>(at + k * kItem);
      changed[k] += bits != at_place<uint32_t>(at + k * kItem - kRow);
      const uint32_t size = bits & kUnsigned;
      largest[k] = size > largest[k] ? size : largest[k];
    }
  }

  // Copies the numbers of the particles that are kept; before[i]: how many were kept before particle i.
  static void copy(const char* rows, long num, long positive, char* out, int32_t* before) {
    const char* const above_0 = rows + kIdBytes + positive * kItem;
    int32_t kept = 0;
    for (long i = 0; i < num; ++i) {
      before[i] = kept;
      std::memcpy(out + kept * kOut, rows + i * kRow + kIdBytes, kOut);
      kept += at_place<int32_t>(above_0 + i * kRow) > 0;  // as are the bits of a number above 0
    }
    before[num] = kept;
  }

  // True if each particle has its event's ids, or is the filler of an event without particles. changes: of ids among all
  // rows.
  static bool check(const char* rows, long changes, const int64_t* counts, long num_events, const char* events,
                    long event_bytes, const int32_t* before, int64_t* kept) {
    long first = 0, expected = 0, wrong = 0;
    for (long i = 0; i < num_events; ++i) {
      const long count = counts[i];
      kept[i] = before[first + count] - before[first];
      if (count) {
        const char* row = rows + first * kRow;
        const uint64_t ids = at_place<uint64_t>(row), change = ids ^ at_place<uint64_t>(row - kRow);
        uint32_t any = 0;
        for (long k = 0; k < kWidth; ++k) any |= at_place<uint32_t>(row + kIdBytes + k * kItem) & kUnsigned;
        const bool is_filler = (count == 1) & (ids == 0) & (any == 0);
        wrong += (ids != at_place<uint64_t>(events + i * event_bytes)) & !is_filler;
        expected += (static_cast<uint32_t>(change) != 0) + (change >> 32 != 0);
        first += count;
      }
    }
    return wrong == 0 && changes == expected;  // no change inside of an event
  }
};

template <long kWidth, long kEventWidth>
long read(const Span& span) {
  using OfEvents = Events<kEventWidth>;
  using OfParticles = Particles<kWidth>;
  long most = span.block;
  for (long i = 0; i < span.rows; ++i) most = span.counts[i] > most ? span.counts[i] : most;
  if (most > kMostParticles) return kUnusual;
  const std::unique_ptr<char[]> events(new (std::nothrow) char[span.block * OfEvents::kRow]);
  const std::unique_ptr<char[]> memory(new (std::nothrow) char[(most + 1) * OfParticles::kRow]);
  const std::unique_ptr<int32_t[]> before(new (std::nothrow) int32_t[most + 1]);
  if (!events || !memory || !before) return kUnusual;
  std::memset(memory.get(), 0, OfParticles::kRow);
  char* const particles = memory.get() + OfParticles::kRow;
  long read_particles = 0, kept = 0;
  for (long row = 0; row < span.rows;) {
    long num = 0, end = row;
    while (end < span.rows && end - row < span.block && span.counts[end] <= most - num) num += span.counts[end++];
    if (num > span.num - read_particles ||
        !read_all(span.file, events.get(), (end - row) * OfEvents::kRow, span.events_at + row * OfEvents::kRow) ||
        !read_all(span.file, particles, num * OfParticles::kRow,
                  span.particles_at + read_particles * OfParticles::kRow) ||
        !OfEvents::split(events.get(), end - row, span, span.events + row * kEventWidth * kItem, span.ids + kIds * row)) {
      return kUnusual;
    }
    OfParticles::copy(particles, num, span.positive, span.particles + kept * OfParticles::kOut, before.get());
    const long changes = OfParticles::changes(particles, num);
    if (changes == kUnusual || !OfParticles::check(particles, changes, span.counts + row, end - row, events.get(),
                                                   OfEvents::kRow, before.get(), span.kept_counts + row)) {
      return kUnusual;
    }
    kept += before[num];
    row = end;
    read_particles += num;
  }
  return read_particles == span.num ? kept : kUnusual;
}

template <long kWidth>
long read_with(const Span& span, long event_width) {
  const auto of = event_width == 3   ? read<kWidth, 3>
                  : event_width == 4 ? read<kWidth, 4>
                  : event_width == 5 ? read<kWidth, 5>
                                     : nullptr;
  return of ? of(span) : kUnusual;
}

}  // namespace

// Events of a span, see there: how many particles were kept, or kUnusual. A particle of zeros that is its event's only
// one is a filler, too. events: (rows, event_width), particles: (num, width).
extern "C" long read_flat_rows(long file, long events_at, long event_width, long particles_at, long width,
                               const int64_t* counts, long rows, long num, long block, const float* least,
                               const float* most, long positive, char* events, int64_t* ids, int64_t* kept_counts,
                               char* particles) {
  if (positive < 0 || positive >= width || block < 1) return kUnusual;
  const Span span{static_cast<int>(file), events_at, particles_at, counts, rows, num, block,
                  least,                  most,      positive,     events, ids, kept_counts, particles};
  const auto of = width == 3 ? read_with<3> : width == 4 ? read_with<4> : width == 5 ? read_with<5> : nullptr;
  return of ? of(span, event_width) : kUnusual;
}
