#include "core/store_reader.h"

#include <numeric>
#include <thread>

#include "check.h"
#include "chunk_image.h"

using namespace penstock;

namespace {

const std::vector<FileAccess> kBoth{FileAccess::map, FileAccess::pread};
constexpr std::uint64_t kStride = 12;

// Row r of chunk c: a plain record of twelve bytes, and one of (r mod 5) bytes; every seventh of both is missing.
std::byte value_of(std::uint32_t chunk, std::uint64_t row, std::uint64_t i) {
  return static_cast<std::byte>(chunk * 101 + row * 7 + i + 1);
}
bool is_missing(std::uint64_t row) { return row % 7 == 6; }

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
const std::vector<Segment> kSegments{{0, 30, 0, 5}, {30, 9, 1, 0}, {39, 80, 2, 20}};
constexpr std::uint64_t kLength = 119;

StoreReader::Place place_of(std::int64_t id) {
  if (id < 30) return {0, static_cast<std::uint32_t>(id + 5)};
  if (id < 39) return {1, static_cast<std::uint32_t>(id - 30)};
  return {2, static_cast<std::uint32_t>(id - 39 + 20)};
}

template <class Where>
void check_reads(const StoreReader& reader, const std::vector<std::int64_t>& ids, ThreadPool& pool, const Where& where) {
  std::vector<std::byte> out(ids.size() * kStride);
  std::vector<std::uint8_t> present(ids.size());
  reader.read_fixed(0, kStride, ids, out.data(), present.data(), pool);
  std::vector<std::int64_t> sizes(ids.size());
  reader.measure(1, 0, ids, sizes.data(), nullptr, pool);
  std::vector<std::int64_t> offsets{0};
  for (const std::int64_t size : sizes) offsets.push_back(offsets.back() + std::max<std::int64_t>(size, 0));
  std::vector<std::byte> other(static_cast<std::size_t>(offsets.back()));
  other.reserve(1);
  reader.read_variable(1, false, ids, offsets.data(), other.data(), pool);
  for (std::size_t n = 0; n < ids.size(); ++n) {
    const StoreReader::Place place = where(ids[n]);
    const bool missing = is_missing(place.row);
    check_equal(present[n] == 0, missing, say("record ", ids[n], " missing"));
    check_equal(sizes[n], missing ? -1 : static_cast<std::int64_t>(place.row % 5), say("size of record ", ids[n]));
    for (std::uint64_t i = 0; i < kStride; ++i) {
      check(out[n * kStride + i] == (missing ? std::byte{} : value_of(place.chunk, place.row, i)), say("record ", ids[n]));
    }
    for (std::int64_t i = 0; i < sizes[n]; ++i) {
      check(other[static_cast<std::size_t>(offsets[n] + i)] == value_of(place.chunk, place.row, static_cast<std::uint64_t>(i)),
            say("bytes of ", ids[n]));
    }
  }
}

std::vector<std::int64_t> scattered(std::size_t count) {
  std::vector<std::int64_t> ids(count);
  for (std::size_t i = 0; i < count; ++i) ids[i] = static_cast<std::int64_t>((i * 7919 + i * i) % kLength);
  return ids;
}

void every_order_of_ids_is_kept() {
  const Files files;
  for (const FileAccess access : kBoth) {
    for (const std::size_t threads : {1, 3}) {
      const StoreReader reader("store", kLength, files.facts(), kSegments, {}, access, {});
      ThreadPool pool(threads);
      std::vector<std::int64_t> all(kLength);
      std::iota(all.begin(), all.end(), 0);
      check_reads(reader, all, pool, place_of);
      check_reads(reader, {all.rbegin(), all.rend()}, pool, place_of);
      check_reads(reader, scattered(20'000), pool, place_of);
      check_reads(reader, {118, 118, 0, 118}, pool, place_of);
      check_reads(reader, {}, pool, place_of);
    }
  }
}

void redirects_lead_elsewhere_for_their_field_only() {
  const Files files;
  StoreReader reader("store", kLength, files.facts(), kSegments, {}, FileAccess::map, {});
  const std::vector<Redirect> moves{{0, 2, 99}, {31, 0, 0}, {118, 1, 8}};
  for (const std::uint32_t field : {0U, 1U}) reader.set_redirects(field, moves);
  ThreadPool pool(2);
  check_reads(reader, scattered(500), pool, [&](std::int64_t id) {
    for (const Redirect& move : moves) {
      if (static_cast<std::int64_t>(move.id) == id) return StoreReader::Place{move.chunk, move.row};
    }
    return place_of(id);
  });
  check_equal(reader.place(7, 0).row, 5U, "another field");
  for (const Redirect& bad :
       std::vector<Redirect>{{kLength, 0, 0}, {0, 3, 0}, {0, 0, 40}, {~0ULL, 0, 0}, {0, ~0U, 0}, {0, 0, ~0U}}) {
    check_throws<CorruptError>([&] { reader.set_redirects(0, {&bad, 1}); });
  }
}

void segments_that_do_not_cover_are_refused() {
  const Files files;
  const std::vector<std::vector<Segment>> bad{
      {},
      {{0, 118, 2, 0}},
      {{1, 118, 2, 0}},
      {{0, 30, 0, 5}, {31, 9, 1, 0}},
      {{0, 30, 0, 5}, {29, 90, 2, 0}},
      {{0, 0, 0, 0}},
      {{0, 36, 0, 5}},
      {{0, 30, 0, ~0U}},
      {{0, 119, 3, 0}},
      {{0, ~0ULL, 0, 0}},
      {{0, 30, 0, 5}, {30, ~0ULL - 10, 1, 0}},
  };
  for (const auto& segments : bad) {
    check_throws<CorruptError>([&] { (void)StoreReader("store", kLength, files.facts(), segments, {}, FileAccess::map, {}); });
  }
  const StoreReader empty("store", 0, {}, {}, {}, FileAccess::map, {});
  check_equal(empty.length(), 0U);
}

void few_open_chunks_are_enough() {
  const Files files;
  for (const FileAccess access : kBoth) {
    StoreLimits limits;
    limits.open_chunks = 1;
    const StoreReader reader("store", kLength, files.facts(), kSegments, {}, access, limits);
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        ThreadPool pool(1);
        for (int i = 0; i < 20; ++i) check_reads(reader, scattered(200), pool, place_of);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

void damage_is_noticed_at_the_first_touch_and_only_there() {
  for (const FileAccess access : kBoth) {
    Files files;
    files.b.image[64 + kStride * 4] ^= std::byte{1};  // row 4 of chunk 1, in the page of rows 3 to 5
    files.b.scratch.fill(files.b.image);
    const StoreReader reader("store", kLength, files.facts(), kSegments, {}, access, {});
    ThreadPool pool(1);
    std::byte out[kStride];
    std::uint8_t present = 0;
    for (std::int64_t id = 0; id < static_cast<std::int64_t>(kLength); ++id) {
      const auto read = [&] { reader.read_fixed(0, kStride, {&id, 1}, out, &present, pool); };
      if (id >= 33 && id <= 35) {
        check_throws<CorruptError>(read);
      } else {
        read();
      }
    }
    StoreLimits trusting;
    trusting.verify = false;
    const StoreReader other("store", kLength, files.facts(), kSegments, {}, access, trusting);
    const std::int64_t id = 34;
    other.read_fixed(0, kStride, {&id, 1}, out, &present, pool);
  }
}

// Cut anywhere, after everything was verified: an error or the right bytes, never zeros.
void a_cut_chunk_is_an_error_or_right() {
  for (const FileAccess access : kBoth) {
    const Files files;
    const StoreReader reader("store", kLength, files.facts(), kSegments, {}, access, {});
    ThreadPool pool(2);
    check_reads(reader, scattered(500), pool, place_of);
    for (std::uint64_t size = files.c.image.size(); size-- > 0;) {
      files.c.scratch.cut(size);
      try {
        check_reads(reader, scattered(50), pool, place_of);
      } catch (const TruncatedError& error) {
        check(std::string(error.what()).find(files.c.scratch.path()) != std::string::npos, error.what());
      } catch (const CorruptError&) {}
    }
    files.c.scratch.fill(files.c.image);
    check_reads(reader, scattered(500), pool, place_of);
  }
}

void records_above_the_limit_are_refused() {
  const Files files;
  StoreLimits limits;
  limits.record_bytes = kStride - 1;
  const StoreReader reader("store", kLength, files.facts(), kSegments, {}, FileAccess::map, limits);
  ThreadPool pool(1);
  const std::int64_t id = 0;
  std::byte out[kStride];
  std::uint8_t present = 0;
  check_throws<CorruptError>([&] { reader.read_fixed(0, kStride, {&id, 1}, out, &present, pool); });
  check_throws<CorruptError>([&] { reader.read_fixed(9, kStride, {&id, 1}, out, &present, pool); });  // a field it does not have
}

void a_field_of_another_size_is_refused() {
  const Files files;
  const StoreReader reader("store", kLength, files.facts(), kSegments, {}, FileAccess::map, {});
  ThreadPool pool(1);
  const std::int64_t id = 0;
  std::vector<std::byte> out(64);
  std::uint8_t present = 0;
  for (const std::uint64_t stride : {0U, 1U, 11U, 13U, 64U}) {
    check_throws<CorruptError>([&] { reader.read_fixed(0, stride, {&id, 1}, out.data(), &present, pool); });
  }
  std::uint32_t dims[2];
  std::int64_t size = 0;
  check_throws<CorruptError>([&] { reader.measure(1, 2, {&id, 1}, &size, dims, pool); });
  const std::int64_t offsets[2] = {0, 63};
  check_throws<CorruptError>([&] { reader.read_variable(1, false, {&id, 1}, offsets, out.data(), pool); });
}

}  // namespace

int main() {
  every_order_of_ids_is_kept();
  redirects_lead_elsewhere_for_their_field_only();
  segments_that_do_not_cover_are_refused();
  few_open_chunks_are_enough();
  damage_is_noticed_at_the_first_touch_and_only_there();
  a_cut_chunk_is_an_error_or_right();
  records_above_the_limit_are_refused();
  a_field_of_another_size_is_refused();
  return finish();
}
