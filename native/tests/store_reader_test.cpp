#include <atomic>
#include <numeric>
#include <thread>

#include "store_files.h"

using namespace penstock;

namespace {

const std::vector<FileAccess> kAll{FileAccess::map, FileAccess::pread, FileAccess::direct};

void every_order_of_ids_is_kept() {
  const Files files;
  for (const FileAccess access : kAll) {
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
  std::vector<Redirect> moves{{0, 2, 99}, {31, 0, 0}};
  for (std::uint32_t i = 0; i < 40; ++i) moves.push_back({50 + i, 2, 10 + i});  // a run,
  for (std::uint32_t i = 0; i < 16; ++i) moves.push_back({90 + i, 2, 80 + i});  // another one right behind it,
  for (std::uint32_t i = 0; i < 8; ++i) moves.push_back({107 + i, 0, i});       // and too few for one
  moves.push_back({118, 1, 8});
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
  check_throws<CorruptError>([&] { reader.set_redirects(0, std::vector<Redirect>{{3, 0, 0}, {3, 0, 1}}); });
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
  for (const FileAccess access : kAll) {
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
  for (const FileAccess access : kAll) {
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
  for (const FileAccess access : kAll) {
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
    check_throws<ChangedError>([&] { check_reads(reader, scattered(500), pool, place_of); });
    const StoreReader again("store", kLength, files.facts(), kSegments, {}, access, {});
    check_reads(again, scattered(500), pool, place_of);
  }
}

void only_compressed_records_have_a_limit_below_that_of_the_format() {
  const Files files;
  StoreLimits limits;
  limits.record_bytes = kStride - 1;
  const StoreReader reader("store", kLength, files.facts(), kSegments, {}, FileAccess::map, limits);
  ThreadPool pool(1);
  const std::int64_t id = 0;
  std::byte out[kStride];
  std::uint8_t present = 0;
  check(reader.read_fixed(0, kStride, {&id, 1}, out, &present, pool) == 0, "raw records have the bytes of their file");
  check_throws<CorruptError>([&] { reader.read_fixed(0, kMaxRecordBytes + 1, {&id, 1}, out, &present, pool); });
}

void messages_name_the_field_and_the_record() {
  const Files files;
  const StoreReader reader("store", kLength, files.facts(), kSegments, {}, FileAccess::map, {},
                           FieldNames{{0, "height of wave"}});
  ThreadPool pool(1);
  const std::int64_t id = 0;
  std::vector<std::byte> out(64);
  std::uint8_t present = 0;
  try {
    reader.read_fixed(0, 64, {&id, 1}, out.data(), &present, pool);
    check(false, "expected an error");
  } catch (const CorruptError& error) {
    const std::string message = error.what();
    check(message.find("field 'height of wave', record 0 (row ") != std::string::npos, message);
  }
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
  const std::int64_t start = 0;
  for (const std::int64_t wrong : {-1, 1, 63}) {
    check_throws<CorruptError>([&] { reader.read_variable(1, false, {&id, 1}, &start, &wrong, out.data(), pool); });
  }
}

std::vector<std::int32_t> in_turn(std::size_t count, std::int32_t sources) {
  std::vector<std::int32_t> which(count);
  for (std::size_t i = 0; i < count; ++i) which[i] = static_cast<std::int32_t>(i * i / 3 % static_cast<std::size_t>(sources));
  return which;
}

// Compares a gather of all ids with one read for each of them.
void check_gather(const StoreGather& gather, std::span<const StoreReader* const> sources, const std::vector<std::int64_t>& ids) {
  const std::vector<std::int32_t> which = in_turn(ids.size(), static_cast<std::int32_t>(sources.size()));
  std::vector<std::byte> out(ids.size() * kStride);
  std::vector<std::uint8_t> present(ids.size(), 1);
  check_equal(gather.read(ids, which, out.data(), present.data()), ids.size(), "records read");
  ThreadPool pool(1);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    std::vector<std::byte> alone(kStride);
    std::uint8_t is_present = 0;
    sources[static_cast<std::size_t>(which[i])]->read_fixed(0, kStride, {&ids[i], 1}, alone.data(), &is_present, pool);
    check_equal(present[i], is_present, say("record ", ids[i], " present"));
    check(std::equal(alone.begin(), alone.end(), out.begin() + static_cast<std::ptrdiff_t>(i * kStride)), say("record ", ids[i]));
  }
}

void a_gather_reads_what_the_stores_read_alone() {
  const Files files;
  const StoreReader plain("store", kLength, files.facts(), kSegments, {}, FileAccess::map, {});
  StoreReader moved("store", kLength, files.facts(), kSegments, {}, FileAccess::map, {});
  moved.set_redirects(0, std::vector<Redirect>{{0, 2, 99}, {31, 0, 0}, {118, 1, 8}});
  const StoreReader even("store", kLength, {files.c.fact, files.a.fact}, {{{0, 100, 0, 0}, {100, 19, 1, 0}}}, {}, FileAccess::map,
                         {});
  const std::vector<const StoreReader*> readers{&plain, &moved, &even, &plain};  // one of them twice
  std::vector<StoreGather::Source> sources;
  for (const StoreReader* const reader : readers) sources.push_back({reader, 0});
  check(StoreGather::can_read(sources, kStride), "all are mapped");
  const StoreGather gather(sources, kStride);
  for (const std::size_t count : {0, 1, 63, 64, 65, 1000}) check_gather(gather, readers, scattered(count));
  const StoreReader unmapped("store", kLength, files.facts(), kSegments, {}, FileAccess::pread, {});
  StoreLimits few;
  few.open_chunks = 2;
  const StoreReader narrow("store", kLength, files.facts(), kSegments, {}, FileAccess::map, few);
  for (const StoreGather::Source bad : {StoreGather::Source{&unmapped, 0}, {&narrow, 0}, {&plain, 1}}) {
    check(!StoreGather::can_read(std::vector<StoreGather::Source>{{&plain, 0}, bad}, kStride), "cannot be read together");
  }
  check(!StoreGather::can_read(sources, 0), "nothing to copy");
}

void a_gather_stops_where_records_are_not_plain() {
  Files files;
  const StoreReader good("store", kLength, files.facts(), kSegments, {}, FileAccess::map, {});
  const std::vector<std::int64_t> ids = scattered(200);
  std::vector<std::int32_t> which(ids.size());
  which[150] = 1;
  std::vector<std::byte> out(ids.size() * kStride);
  std::vector<std::uint8_t> present(ids.size(), 1);
  const StoreGather other(std::vector<StoreGather::Source>{{&good, 1}}, kStride);
  check_equal(other.read(ids, std::vector<std::int32_t>(ids.size()), out.data(), present.data()), std::size_t{0},
              "a field of another kind");
  const StoreReader cut("store", 40, {files.a.fact}, {{{0, 40, 0, 0}}}, {}, FileAccess::map, {});
  const StoreGather both(std::vector<StoreGather::Source>{{&good, 0}, {&cut, 0}}, kStride);
  std::vector<std::int64_t> some = ids;
  some[150] = 3;
  check_equal(both.read(some, which, out.data(), present.data()), ids.size(), "all are plain");
  Files damaged;
  damaged.b.image[64 + kStride * 4] ^= std::byte{1};
  damaged.b.scratch.fill(damaged.b.image);
  const StoreReader bad("store", kLength, damaged.facts(), kSegments, {}, FileAccess::map, {});
  const StoreGather with_bad(std::vector<StoreGather::Source>{{&good, 0}, {&bad, 0}}, kStride);
  some[150] = 34;
  check_throws<CorruptError>([&] { with_bad.read(some, which, out.data(), present.data()); });
}

void chunks_may_be_closed_while_others_gather() {
  const Files files;
  const StoreReader one("store", kLength, files.facts(), kSegments, {}, FileAccess::map, {});
  const StoreReader two("store", kLength, files.facts(), kSegments, {}, FileAccess::map, {});
  const StoreGather forth(std::vector<StoreGather::Source>{{&one, 0}, {&two, 0}}, kStride);
  const StoreGather back(std::vector<StoreGather::Source>{{&two, 0}, {&one, 0}}, kStride);
  std::atomic<bool> is_over{false};
  std::vector<std::thread> threads;
  for (const StoreGather* const gather : {&forth, &back, &forth}) {
    threads.emplace_back([&, gather] {
      for (int i = 0; i < 200; ++i) check_gather(*gather, std::vector<const StoreReader*>{&one, &two}, scattered(100));
      is_over = true;
    });
  }
  for (std::uint32_t i = 0; !is_over; ++i) (i % 2 == 0 ? one : two).forget(i / 2 % 3);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

int main() {
  a_gather_reads_what_the_stores_read_alone();
  a_gather_stops_where_records_are_not_plain();
  chunks_may_be_closed_while_others_gather();
  every_order_of_ids_is_kept();
  redirects_lead_elsewhere_for_their_field_only();
  segments_that_do_not_cover_are_refused();
  few_open_chunks_are_enough();
  damage_is_noticed_at_the_first_touch_and_only_there();
  a_cut_chunk_is_an_error_or_right();
  only_compressed_records_have_a_limit_below_that_of_the_format();
  messages_name_the_field_and_the_record();
  a_field_of_another_size_is_refused();
  return finish();
}
