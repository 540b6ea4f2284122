// Pages of Parquet columns as the common writers make them: numbers one after the other (PLAIN) behind levels of
// repetition and definition (RLE), nothing null, lists of one width. Format: parquet.thrift and Encodings.md of
// apache/parquet-format.
//
// A file may be made to do harm: each length is compared with what is left before it is used. What is unusual or
// wrong gives kUnusual, and another reader decides. Nothing is read or written outside of the given buffers.

#include <cstdint>
#include <cstring>

namespace {

constexpr long kUnusual = -1;
constexpr int64_t kNoChecksum = INT64_MIN;

struct Bytes {
  const uint8_t* at;
  const uint8_t* end;

  long left() const { return end - at; }

  // A number of at most 64 bits, 7 of them in a byte.
  bool varint(uint64_t& value) {
    value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (at == end) return false;
      const uint8_t byte = *at++;
      if (shift == 63 && byte > 1) return false;
      value |= static_cast<uint64_t>(byte & 127) << shift;
      if (byte < 128) return true;
    }
    return false;
  }

  bool skip(uint64_t num) {
    if (num > static_cast<uint64_t>(left())) return false;
    at += num;
    return true;
  }
};

// Thrift's compact protocol.
enum Kind { kTrue = 1, kFalse = 2, kByte = 3, kI16 = 4, kI32 = 5, kI64 = 6, kDouble = 7, kBinary = 8, kStruct = 12 };

bool signed32(Bytes& bytes, int64_t& value) {
  uint64_t raw;
  if (!bytes.varint(raw) || raw > UINT32_MAX) return false;
  value = static_cast<int64_t>(raw >> 1) ^ -static_cast<int64_t>(raw & 1);
  return true;
}

// The next field's type, 0 at the struct's end. Fields come in ascending order, each once.
bool next_field(Bytes& bytes, int& number, int& kind) {
  if (bytes.at == bytes.end) return false;
  const uint8_t head = *bytes.at++;
  kind = head & 15;
  if (kind == 0) return head == 0;
  number += head >> 4;
  return (head >> 4) != 0;
}

// Fields 1 to 4 of a struct, 32-bit numbers, and field 5, which `read_inner` reads.
template <typename Inner>
bool read_struct(Bytes& bytes, int64_t* found, Inner read_inner) {
  int number = 0, kind = 0;
  while (next_field(bytes, number, kind)) {
    if (kind == 0) return true;
    const bool is_read = number <= 4 ? kind == kI32 && signed32(bytes, found[number])
                                     : number == 5 && kind == kStruct && read_inner();
    if (!is_read) return false;
  }
  return false;
}

// Statistics: numbers and bytes, and no struct in them.
bool skip_struct(Bytes& bytes) {
  int number = 0, kind = 0;
  while (next_field(bytes, number, kind)) {
    uint64_t value;
    switch (kind) {
      case 0: return true;
      case kTrue: case kFalse: break;
      case kI16: case kI32: case kI64:
        if (!bytes.varint(value)) return false;
        break;
      case kBinary:
        if (!bytes.varint(value) || !bytes.skip(value)) return false;
        break;
      default: return false;
    }
  }
  return false;
}

// Numbers of `width` <= 3 bits, eight in a group, one a byte.
uint64_t spread(uint64_t bits, int width) {
  uint64_t found = 0;
  const uint64_t mask = (1u << width) - 1;
  for (int i = 0; i < 8; ++i) found |= ((bits >> (i * width)) & mask) << (8 * i);
  return found;
}

template <int kWidth>
const uint8_t* unpack_groups(const uint8_t* at, uint64_t groups, uint8_t* out, int shift) {
  for (uint64_t g = 0; g < groups; ++g, at += kWidth, out += 8) {
    uint64_t bits = 0;
    for (int i = 0; i < kWidth; ++i) bits |= static_cast<uint64_t>(at[i]) << (8 * i);
    uint64_t found = spread(bits, kWidth) << shift;
    uint64_t before;
    std::memcpy(&before, out, 8);
    found |= before;
    std::memcpy(out, &found, 8);
  }
  return at;
}

int bit_width(long most) { return most >= 4 ? 3 : most >= 2 ? 2 : 1; }

// `num` levels, or'ed into `out` << shift; out has 8 bytes more. The levels must fill their bytes.
bool add_levels(Bytes& page, long most, long num, uint8_t* out, int shift) {
  if (page.left() < 4) return false;
  uint32_t length;
  std::memcpy(&length, page.at, 4);
  page.at += 4;
  if (length > static_cast<uint64_t>(page.left())) return false;
  Bytes runs{page.at, page.at + length};
  page.at += length;
  const int width = bit_width(most);
  long done = 0;
  while (done < num) {
    uint64_t head;
    if (!runs.varint(head)) return false;
    const uint64_t size = head >> 1, rest = static_cast<uint64_t>(num - done);
    if (size == 0) return false;  // an endless loop otherwise
    if (head & 1) {
      // The last group may have fewer than eight.
      if (size > (rest + 7) / 8 || size * width > static_cast<uint64_t>(runs.left())) return false;
      uint8_t* to = out + done;
      runs.at = width == 1   ? unpack_groups<1>(runs.at, size, to, shift)
                : width == 2 ? unpack_groups<2>(runs.at, size, to, shift)
                             : unpack_groups<3>(runs.at, size, to, shift);
      const uint64_t found = size * 8 < rest ? size * 8 : rest;
      done += found;
      if (done == num) std::memset(out + num, 0, 8);
    } else {
      if (size > rest || runs.left() < 1) return false;
      const uint8_t level = *runs.at++;
      if (level > most) return false;
      for (uint64_t i = 0; i < size; ++i) out[done + i] |= level << shift;
      done += size;
    }
  }
  return runs.left() == 0;
}

uint64_t first_bytes(const uint8_t* at, long num) {
  uint64_t found = 0;
  std::memcpy(&found, at, 8);
  return num == 8 ? found : found & ((uint64_t{1} << (8 * num)) - 1);
}

struct Shape {
  long most_repetition;
  long most_definition;
  long empty;  // definition level of an empty list of particles; -1: there are no such lists
  long width;  // numbers of an innermost list
};

// Particles of each row, from `num` levels: repetition in the lower four bits. Returns the number of rows.
// `lists`: number of innermost lists.
long count_particles(const uint8_t* levels, long num, const Shape& shape, int64_t* counts, long most_rows,
                     int64_t& lists) {
  const uint8_t full = static_cast<uint8_t>(shape.most_definition << 4);
  const bool is_ragged = shape.empty >= 0;
  const uint8_t empty = is_ragged ? static_cast<uint8_t>(shape.empty << 4) : 0;
  const long width = shape.width;
  uint8_t first[8], next[8];
  for (long i = 0; i < 8; ++i) {
    const uint8_t level = i == 0 ? 0 : shape.most_repetition;
    first[i] = level | full;
    next[i] = (i == 0 ? 1 : level) | full;
  }
  const long compared = width < 8 ? width : 8;
  const uint64_t is_first = first_bytes(first, compared), is_next = first_bytes(next, compared);
  long at = 0, rows = 0;
  lists = 0;
  while (at < num) {
    if (rows == most_rows) return kUnusual;
    if (is_ragged && levels[at] == empty) {
      counts[rows++] = 0;
      ++at;
      continue;
    }
    int64_t count = 0;
    uint64_t expected = is_first;
    do {
      if (num - at < width || first_bytes(levels + at, compared) != expected) return kUnusual;
      for (long i = 8; i < width; ++i) {
        if (levels[at + i] != (static_cast<uint8_t>(shape.most_repetition) | full)) return kUnusual;
      }
      at += width;
      ++count;
      expected = is_next;
    } while (is_ragged && at < num && (levels[at] & 15) == 1);
    if (is_ragged) counts[rows] = count;
    ++rows;
    lists += count;
  }
  return rows;
}

// `num` items of `size` bytes, each `stride` bytes behind the one before.
template <long kSize>
void scatter(const uint8_t* from, long num, uint8_t* to, long stride) {
  for (long i = 0; i < num; ++i) std::memcpy(to + i * stride, from + i * kSize, kSize);
}

}  // namespace

// Header of a page: its length in bytes, or kUnusual. found: uncompressed size, compressed size, 1 if it has a
// checksum, the checksum, number of values. Only pages of the first version with PLAIN numbers and RLE levels.
extern "C" long parse_page_header(const uint8_t* raw, long size, int64_t* found) {
  Bytes bytes{raw, raw + size};
  int64_t page[5] = {-1, -1, -1, 0, kNoChecksum};  // by field: -, type, uncompressed, compressed, checksum
  int64_t data[5] = {-1, -1, -1, -1, -1};  // by field: -, values, encoding, definition's, repetition's
  const auto read_data = [&] { return read_struct(bytes, data, [&] { return skip_struct(bytes); }); };
  if (!read_struct(bytes, page, read_data)) return kUnusual;
  const bool is_plain = page[1] == 0 && data[2] == 0 && data[3] == 3 && data[4] == 3;
  if (!is_plain || page[2] < 0 || page[3] < 0 || data[1] < 0) return kUnusual;
  found[0] = page[2];
  found[1] = page[3];
  found[2] = page[4] != kNoChecksum;
  found[3] = page[4] & UINT32_MAX;
  found[4] = data[1];
  return bytes.at - raw;
}

// Size of the uncompressed bytes that compressed ones declare, kUnusual if they don't. codec: Parquet's number.
extern "C" long declared_size(long codec, const uint8_t* raw, long size) {
  Bytes bytes{raw, raw + size};
  uint64_t found;
  if (codec == 1) return bytes.varint(found) && found <= INT32_MAX ? static_cast<long>(found) : kUnusual;
  if (codec != 6 || size < 6) return kUnusual;
  // A frame of zstd: magic number, descriptor, window, dictionary, size (RFC 8878, 3.1.1).
  static constexpr uint8_t kMagic[4] = {0x28, 0xB5, 0x2F, 0xFD};
  if (std::memcmp(raw, kMagic, 4) != 0) return kUnusual;
  const uint8_t descriptor = raw[4];
  const bool is_single = descriptor & 32;
  if (descriptor & 11) return kUnusual;  // reserved, or a dictionary
  const uint8_t* at = raw + 5 + !is_single;
  const int length = descriptor >> 6 ? 1 << (descriptor >> 6) : is_single;
  if (length == 0 || length > raw + size - at) return kUnusual;
  found = 0;
  for (int i = 0; i < length; ++i) found |= static_cast<uint64_t>(at[i]) << (8 * i);
  if (length == 2) found += 256;
  return found <= INT32_MAX ? static_cast<long>(found) : kUnusual;
}

// Numbers and particles of a page, uncompressed, of num_values values: 0, or kUnusual.
//
// levels: memory of num_levels bytes, at least num_values + 16. counts: particles of each row, for at most most_rows; unused unless lists
// of particles may be empty. out: innermost lists, `stride` bytes from one to the next, for at most most_lists.
// found: rows, innermost lists.
extern "C" long read_page(const uint8_t* raw, long size, long num_values, long most_repetition, long most_definition,
                          long empty, long width, long item_bytes, long stride, uint8_t* levels, long num_levels,
                          int64_t* counts, long most_rows, uint8_t* out, long most_lists, int64_t* found) {
  if (size < 0 || num_values < 0 || num_values > num_levels - 16) return kUnusual;
  Bytes page{raw, raw + size};
  const Shape shape{most_repetition, most_definition, empty, width};
  int64_t lists = num_values;
  long rows = num_values;
  if (most_definition > 0 || most_repetition > 0) {
    std::memset(levels, 0, num_values + 16);
    if (most_repetition > 0 && !add_levels(page, most_repetition, num_values, levels, 0)) return kUnusual;
    if (most_definition > 0 && !add_levels(page, most_definition, num_values, levels, 4)) return kUnusual;
  }
  if (most_repetition > 0) {
    rows = count_particles(levels, num_values, shape, counts, most_rows, lists);
    if (rows < 0) return kUnusual;
  } else {
    if (rows > most_rows) return kUnusual;
    const uint8_t full = static_cast<uint8_t>(most_definition << 4);
    uint8_t wrong = 0;
    if (most_definition > 0) {
      for (long i = 0; i < num_values; ++i) wrong |= levels[i] ^ full;
    }
    if (wrong) return kUnusual;
  }
  const long list_bytes = width * item_bytes;
  if (lists > most_lists || lists * list_bytes != page.left()) return kUnusual;
  if (stride == list_bytes) {
    std::memcpy(out, page.at, lists * list_bytes);
  } else if (list_bytes == 8) {
    scatter<8>(page.at, lists, out, stride);
  } else if (list_bytes == 4) {
    scatter<4>(page.at, lists, out, stride);
  } else {
    return kUnusual;
  }
  found[0] = rows;
  found[1] = lists;
  return 0;
}
