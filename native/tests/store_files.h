// A small store made by hand for tests, and what must be read from it.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "check.h"
#include "chunk_image.h"
#include "core/store_reader.h"

namespace penstock {

inline constexpr std::uint64_t kStride = 12;

// Row r of chunk c: a plain record of twelve bytes, and one of (r mod 5) bytes; every seventh of both is missing.
inline std::byte value_of(std::uint32_t chunk, std::uint64_t row, std::uint64_t i) {
  return static_cast<std::byte>(chunk * 101 + row * 7 + i + 1);
}
inline bool is_missing(std::uint64_t row) { return row % 7 == 6; }

struct StoreFile {
  StoreFile(std::uint32_t index, std::uint32_t rows) : scratch("reader-" + std::to_string(index)) {
    ImageField plain{.number = 0, .stride = kStride, .rows_per_page = 3};
    ImageField other{.number = 1, .rows_per_page = 2};
    std::vector<std::uint64_t> ends;
    Image validity((rows + 7) / 8);
    for (std::uint64_t row = 0; row < rows; ++row) {
      for (std::uint64_t i = 0; i < kStride; ++i) plain.data.push_back(value_of(index, row, i));
      for (std::uint64_t i = 0; i < row % 5; ++i) other.data.push_back(value_of(index, row, i));
      ends.push_back(other.data.size());
      if (!is_missing(row)) validity[row / 8] |= std::byte{1} << (row % 8);
    }
    other.arrays[1] = numbers(ends);
    plain.arrays[4] = other.arrays[4] = validity;
    image = make_image(rows, {plain, other});
    fact = seal(image, scratch.path());
    scratch.fill(image);
  }
  ScratchFile scratch;
  Image image;
  ChunkFact fact;
};

struct Files {
  StoreFile a{0, 40}, b{1, 9}, c{2, 100};
  std::vector<ChunkFact> facts() const { return {a.fact, b.fact, c.fact}; }
};

// Ids 0..29 are rows 5.. of chunk 0, 30..38 all of chunk 1, 39..118 rows 20.. of chunk 2.
inline const std::vector<Segment> kSegments{{0, 30, 0, 5}, {30, 9, 1, 0}, {39, 80, 2, 20}};
inline constexpr std::uint64_t kLength = 119;

inline StoreReader::Place place_of(std::int64_t id) {
  if (id < 30) return {0, static_cast<std::uint32_t>(id + 5)};
  if (id < 39) return {1, static_cast<std::uint32_t>(id - 30)};
  return {2, static_cast<std::uint32_t>(id - 39 + 20)};
}

template <class Where>
void check_reads(const StoreReader& reader, const std::vector<std::int64_t>& ids, ThreadPool& pool, const Where& where) {
  std::vector<std::byte> out(ids.size() * kStride);
  std::vector<std::uint8_t> present(ids.size());
  std::vector<std::uint32_t> turned(ids.size());  // from the last place to the first
  for (std::size_t n = 0; n < ids.size(); ++n) turned[n] = static_cast<std::uint32_t>(ids.size() - 1 - n);
  const std::uint64_t num_missing = reader.read_fixed(0, kStride, ids, out.data(), present.data(), pool, Places(turned.data()));
  const std::vector<std::byte> backwards = out;
  const std::vector<std::uint8_t> present_backwards = present;
  check_equal(reader.read_fixed(0, kStride, ids, out.data(), present.data(), pool), num_missing, "missing records");
  std::vector<std::int64_t> sizes(ids.size());
  reader.measure(1, 0, ids, sizes.data(), nullptr, pool);
  std::vector<std::int64_t> offsets{0};
  for (const std::int64_t size : sizes) offsets.push_back(offsets.back() + std::max<std::int64_t>(size, 0));
  std::vector<std::byte> other(static_cast<std::size_t>(offsets.back()));
  other.reserve(1);
  reader.read_variable(1, false, ids, offsets.data(), sizes.data(), other.data(), pool);
  for (std::size_t n = 0; n < ids.size(); ++n) {
    const StoreReader::Place place = where(ids[n]);
    const bool missing = is_missing(place.row);
    check_equal(present[n] == 0, missing, say("record ", ids[n], " missing"));
    check_equal(present_backwards[turned[n]], present[n], say("presence of record ", ids[n]));
    check_equal(sizes[n], missing ? -1 : static_cast<std::int64_t>(place.row % 5), say("size of record ", ids[n]));
    for (std::uint64_t i = 0; i < kStride; ++i) {
      const std::byte expected = missing ? std::byte{} : value_of(place.chunk, place.row, i);
      check(out[n * kStride + i] == expected, say("record ", ids[n]));
      check(backwards[turned[n] * kStride + i] == expected, say("record ", ids[n], " in another place"));
    }
    for (std::int64_t i = 0; i < sizes[n]; ++i) {
      check(other[static_cast<std::size_t>(offsets[n] + i)] == value_of(place.chunk, place.row, static_cast<std::uint64_t>(i)),
            say("bytes of ", ids[n]));
    }
  }
}

inline std::vector<std::int64_t> scattered(std::size_t count) {
  std::vector<std::int64_t> ids(count);
  for (std::size_t i = 0; i < count; ++i) ids[i] = static_cast<std::int64_t>((i * 7919 + i * i) % kLength);
  return ids;
}

}  // namespace penstock
