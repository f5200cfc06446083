#include "core/batch_ring.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <numeric>

#include "check.h"
#include "core/error.h"
#include "core/seed.h"

using namespace penstock;

namespace {

// Records of eight bytes: the id times three, plus the number of the source. Odd ids of the second field are missing; id 666
// fails.
std::vector<RingField> fields(bool slow = false, std::int64_t sources = 1) {
  std::vector<RingField> made{{8, {}}, {1, {}}};
  for (std::int64_t source = 0; source < sources; ++source) {
    made[0].sources.push_back([=](const RingRead& read) {
      for (std::size_t i = 0; i < read.ids.size(); ++i) {
        const std::int64_t id = read.ids[i];
        if (id == 666) throw std::runtime_error("record 666");
        if (slow && i == 0) std::this_thread::sleep_for(std::chrono::microseconds(id % 7 * 300));
        const std::int64_t value = id * 3 + source;
        std::memcpy(read.out + read.places[i] * 8, &value, 8);
      }
    });
    made[1].sources.push_back([](const RingRead& read) {
      for (std::size_t i = 0; i < read.ids.size(); ++i) {
        read.present[read.places[i]] = read.ids[i] % 2 == 0;
        read.out[read.places[i]] = static_cast<std::byte>(read.ids[i]);
      }
    });
  }
  return made;
}

std::vector<std::int64_t> some_ids(std::int64_t first, std::size_t count) {
  std::vector<std::int64_t> ids(count);
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

std::unique_ptr<RingBatch> wait(BatchRing& ring) {
  std::unique_ptr<RingBatch> batch;
  while (batch == nullptr) batch = ring.take(10);
  return batch;
}

void check_batch(const RingBatch& batch, std::int64_t first, std::size_t count) {
  check_equal(batch.picks.ids, some_ids(first, count), "ids");
  for (std::size_t i = 0; i < count; ++i) {
    const std::int64_t id = first + static_cast<std::int64_t>(i);
    std::int64_t value = 0;
    std::memcpy(&value, batch.values[0].get() + 8 * i, 8);
    check_equal(value, 3 * id + (batch.picks.which.empty() ? 0 : batch.picks.which[i]), say("record ", id));
    check(batch.present[0].get()[i] == std::byte{1}, "present");
    check(batch.present[1].get()[i] == std::byte{id % 2 == 0}, "missing");
    check(batch.values[1].get()[i] == static_cast<std::byte>(id), say("second field of record ", id));
  }
}

void batches_come_out_in_order() {
  for (const std::size_t threads : {1, 2, 5}) {
    BatchRing ring(fields(true), threads);
    std::int64_t asked = 0;
    std::int64_t taken = 0;
    while (taken < 60) {
      for (; asked < 60 && ring.size() < 8; ++asked)
        ring.put({some_ids(1000 * asked, static_cast<std::size_t>(asked * 31 % 50)), {}, {}});
      check_batch(*wait(ring), 1000 * taken, static_cast<std::size_t>(taken * 31 % 50));
      ++taken;
    }
    check_equal(ring.size(), std::size_t{0}, "nothing left");
  }
}

// What is drawn for a record comes with it, whatever pieces a batch is cut into and whatever source the record is of.
void seeds_come_with_their_records() {
  for (const std::size_t sources : {1, 3}) {
    std::atomic<std::size_t> most{0};
    RingField field{16, {}, nullptr, 1 << 20};  // a lot of work, so that every record is a piece
    for (std::size_t source = 0; source < sources; ++source) {
      field.sources.push_back([&most](const RingRead& read) {
        most = std::max<std::size_t>(most, read.ids.size());
        check_equal(read.seeds.size(), read.ids.size(), "a seed each");
        for (std::size_t i = 0; i < read.ids.size(); ++i) {
          std::memcpy(read.out + read.places[i] * 16, &read.ids[i], 8);
          std::memcpy(read.out + read.places[i] * 16 + 8, &read.seeds[i], 8);
        }
      });
    }
    BatchRing ring({field}, 3);
    RingPicks picks{some_ids(5, 40), {}, {}};
    for (std::int64_t id : picks.ids) {
      picks.seeds.push_back(static_cast<std::uint64_t>(id) * kGolden);
      if (sources > 1) picks.which.push_back(static_cast<std::int32_t>(id % 3));
    }
    ring.put(picks);
    const std::unique_ptr<RingBatch> batch = wait(ring);
    for (std::size_t i = 0; i < 40; ++i) {
      std::uint64_t found[2];
      std::memcpy(found, batch->values[0].get() + 16 * i, 16);
      check_equal(found[0], i + 5, "record");
      check_equal(found[1], (i + 5) * kGolden, "its seed");
    }
    check_equal(most.load(), std::size_t{1}, "records of a piece");
  }
}

void large_batches_are_shared_between_threads() {
  BatchRing ring(fields(), 3);
  ring.put({some_ids(5'000'000, 400'000), {}, {}});
  check_batch(*wait(ring), 5'000'000, 400'000);
}

void records_of_several_sources_come_to_their_places() {
  for (const std::int32_t sources : {1, 2, 7, 300}) {
    BatchRing ring(fields(false, sources), 2);
    for (const std::size_t count : {0, 1, 5, 1000, 100'000}) {
      std::vector<std::int32_t> which(count);
      for (std::size_t i = 0; i < count; ++i) which[i] = static_cast<std::int32_t>(i * i % 11 * 31) % sources;
      ring.put({some_ids(1000, count), which, {}});
      check_batch(*wait(ring), 1000, count);
    }
  }
}

void records_of_one_source_are_read_together() {
  constexpr std::size_t stride = 20'000;
  RingField field{stride, {}};
  std::atomic<std::size_t> calls = 0;
  for (int source = 0; source < 3; ++source) {
    field.sources.push_back([&calls, source](const RingRead& read) {
      ++calls;
      for (std::size_t i = 0; i < read.ids.size(); ++i) {
        std::memset(read.out + read.places[i] * stride, static_cast<int>(10 * read.ids[i] + source), stride);
        read.present[read.places[i]] = source != 2;
      }
    });
  }
  BatchRing ring({field}, 1);
  ring.put({some_ids(0, 6), {0, 1, 2, 1, 0, 1}, {}});
  const std::unique_ptr<RingBatch> batch = wait(ring);
  const std::vector<int> expected{0, 11, 22, 31, 40, 51};
  for (std::size_t i = 0; i < expected.size(); ++i) {
    for (const std::size_t at : {std::size_t{0}, stride - 1}) {
      check_equal(static_cast<int>(batch->values[0].get()[i * stride + at]), expected[i], say("record ", i));
    }
    check(batch->present[0].get()[i] == std::byte{i != 2}, "presence");
  }
  check_equal(calls.load(), std::size_t{3}, "a call for each source");
}

// However many of the first records that is; the second field is read source by source.
void what_is_not_gathered_is_read_source_by_source() {
  for (const std::size_t most : {0, 1, 40, 100}) {
    for (const bool both : {false, true}) {
      std::vector<RingField> made = fields(false, 3);
      made[0].gather = [=](auto ids, auto which, std::byte* out, std::uint8_t*) {
        const std::size_t count = std::min(most, ids.size());
        for (std::size_t i = 0; i < count; ++i) {
          const std::int64_t value = ids[i] * 3 + which[i];
          std::memcpy(out + 8 * i, &value, 8);
        }
        return count;
      };
      if (both) {
        made[1].gather = [=](auto ids, auto, std::byte* out, std::uint8_t* present) {
          const std::size_t count = std::min(most / 2, ids.size());
          for (std::size_t i = 0; i < count; ++i) {
            present[i] = ids[i] % 2 == 0;
            out[i] = static_cast<std::byte>(ids[i]);
          }
          return count;
        };
      }
      BatchRing ring(std::move(made), 2);
      std::vector<std::int32_t> which(100);
      for (std::size_t i = 0; i < which.size(); ++i) which[i] = static_cast<std::int32_t>(i * 7 % 3);
      ring.put({some_ids(700, 100), which, {}});
      check_batch(*wait(ring), 700, 100);
    }
  }
}

void runs_of_records_come_one_after_the_other() {
  RingField field{4, {}};
  for (int source = 0; source < 2; ++source) {
    field.sources.push_back([source](const RingRead& read) {
      for (std::size_t i = 0; i < read.ids.size(); ++i) {
        if (read.ids[i] < 0) continue;
        for (std::int64_t at = read.offsets[i]; at < read.offsets[i + 1]; ++at) {
          const auto value = static_cast<std::int32_t>((read.ids[i] + at - read.offsets[i]) * 2 + source);
          std::memcpy(read.out + 4 * at, &value, 4);
        }
      }
    });
  }
  BatchRing ring({field}, 2);
  for (const bool mixed : {false, true}) {
    RingPicks picks{{}, {}, {0}};
    std::vector<std::int32_t> expected;
    for (std::int64_t run = 0; run < 3000; ++run) {
      const std::int64_t start = run % 11 == 0 ? -1 - run % 3 : run * 7919 % 10'007;
      const std::int64_t length = run % 5 == 0 ? 0 : run % 200;
      const std::int32_t source = mixed ? static_cast<std::int32_t>(run * run % 3 % 2) : 0;
      picks.ids.push_back(start);
      if (mixed) picks.which.push_back(source);
      picks.offsets.push_back(picks.offsets.back() + length);
      for (std::int64_t i = 0; i < length; ++i) {
        expected.push_back(start < 0 ? 0 : static_cast<std::int32_t>((start + i) * 2 + source));
      }
    }
    ring.put(picks);
    const std::unique_ptr<RingBatch> batch = wait(ring);
    check_equal(batch->picks.records(), expected.size(), "records");
    std::vector<std::int32_t> found(expected.size());
    std::memcpy(found.data(), batch->values[0].get(), 4 * found.size());
    check(found == expected, "every record of every run in its place, and zeros for padding");
  }
}

void an_error_of_a_mixture_comes_out_at_its_place() {
  BatchRing ring(fields(false, 2), 2);
  ring.put({some_ids(660, 10), {0, 1, 0, 1, 0, 1, 0, 1, 0, 1}, {}});
  ring.put({some_ids(100, 3), {1, 0, 1}, {}});
  check(wait(ring)->error != nullptr, "the first one fails");
  check_batch(*wait(ring), 100, 3);
}

void an_error_comes_out_at_its_place() {
  BatchRing ring(fields(true), 2);
  ring.put({some_ids(0, 10), {}, {}});
  ring.put({some_ids(660, 10), {}, {}});
  ring.put({some_ids(100, 10), {}, {}});
  check_batch(*wait(ring), 0, 10);
  check(wait(ring)->error != nullptr, "the second one fails");
  check_batch(*wait(ring), 100, 10);
}

void a_ring_may_be_left_with_work_in_it() {
  for (int round = 0; round < 30; ++round) {
    BatchRing ring(fields(true), static_cast<std::size_t>(1 + round % 4));
    for (int i = 0; i < 20; ++i) ring.put({some_ids(i * 10, 10), {}, {}});
    if (round % 2 == 0) (void)wait(ring);
  }
}

void waiting_ends_after_a_while() {
  const RingFill block = [](const RingRead&) { std::this_thread::sleep_for(std::chrono::milliseconds(200)); };
  BatchRing ring({{1, {block}}}, 1);
  ring.put({some_ids(0, 1), {}, {}});
  check(ring.take(5) == nullptr, "not ready yet");
  (void)wait(ring);
}

// Record id of source s: (id + s) mod 7 rows of two items of four bytes, each item id * 100 + s; every fifth id is missing. Some
// ids fail: 666 when it is measured, 667 when it is read; 668 has half an item, 671 a shape of another size, 672 a huge one.
class Rows final : public VaryingReader {
 public:
  explicit Rows(std::int64_t source, std::uint64_t limit = ~std::uint64_t{0}) : source_(source), limit_(limit) {}

  static std::int64_t size_of(std::int64_t id, std::int64_t source) { return id % 5 == 4 ? -1 : (id + source) % 7 * 8; }

  void sizes(std::span<const std::int64_t> rows, std::uint8_t ndim, std::int64_t* sizes, std::uint32_t* dims) const override {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (rows[i] == 666) throw std::runtime_error("record 666");
      sizes[i] = rows[i] == 668 ? 2 : size_of(rows[i], source_);
      if (ndim == 0) continue;
      dims[2 * i] = static_cast<std::uint32_t>(std::max<std::int64_t>(sizes[i], 0) / 8);
      dims[2 * i + 1] = sizes[i] < 0 ? 0 : 2;
      if (rows[i] == 671) dims[2 * i] += 1;
      if (rows[i] == 672) dims[2 * i] = dims[2 * i + 1] = ~0U;
    }
  }
  void read(std::span<const std::int64_t> rows, const std::int64_t* starts, const std::int64_t* sizes,
            std::byte* out) const override {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (rows[i] == 667) throw std::runtime_error("record 667");
      for (std::int64_t at = 0; at < sizes[i]; at += 4) {
        const auto value = static_cast<std::int32_t>(rows[i] * 100 + source_);
        std::memcpy(out + starts[i] + at, &value, 4);
      }
    }
  }
  void read_parts(std::span<const RecordPart>, std::byte*) const override {
    throw std::logic_error("a ring reads whole records");
  }
  std::uint64_t batch_bytes() const override { return limit_; }

 private:
  std::int64_t source_;
  std::uint64_t limit_;
};

// Rings with a fixed field of eight bytes and one, or two, of varying length.
struct VaryingRing {
  explicit VaryingRing(std::int64_t num_sources, std::size_t threads, RingRoom room = {}, std::uint64_t limit = ~std::uint64_t{0})
      : ring(fixed(num_sources), both(num_sources, limit), threads, room) {}

  static std::vector<RingField> fixed(std::int64_t num_sources) {
    std::vector<RingField> made = fields(false, num_sources);
    made.pop_back();
    return made;
  }
  std::vector<RingVarying> both(std::int64_t num_sources, std::uint64_t limit) {
    std::vector<RingVarying> made{{4, 0, {}}, {4, 2, {}}};
    for (std::int64_t source = 0; source < num_sources; ++source) {
      readers.push_back(std::make_unique<Rows>(source, limit));
      for (RingVarying& field : made) field.sources.push_back(readers.back().get());
    }
    return made;
  }

  std::vector<std::unique_ptr<Rows>> readers;
  BatchRing ring;
};

void check_varying(const RingBatch& batch, std::int64_t first, std::size_t count) {
  check(batch.error == nullptr, "no error");
  check_equal(batch.picks.ids, some_ids(first, count), "ids");
  for (std::size_t f = 0; f < 2; ++f) {
    const VaryingValues& found = batch.varying[f];
    const auto* const offsets = reinterpret_cast<const std::int64_t*>(found.offsets.get());
    const auto* const shapes = reinterpret_cast<const std::uint32_t*>(found.shapes.get());
    std::int64_t end = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const std::int64_t id = first + static_cast<std::int64_t>(i);
      const std::int64_t source = batch.picks.which.empty() ? 0 : batch.picks.which[i];
      const std::int64_t size = Rows::size_of(id, source);
      const std::int64_t items = std::max<std::int64_t>(size, 0) / 4;
      check_equal(offsets[i], end, say("offset of record ", id));
      check(found.present.get()[i] == std::byte{size >= 0}, say("presence of record ", id));
      if (f == 1) {
        check_equal(static_cast<std::int64_t>(shapes[2 * i]), items / 2, say("rows of record ", id));
        check_equal(shapes[2 * i + 1], size < 0 ? 0U : 2U, say("columns of record ", id));
      }
      for (std::int64_t at = end; at < end + items; ++at) {
        std::int32_t value = 0;
        std::memcpy(&value, found.values.get() + 4 * at, 4);
        check_equal(static_cast<std::int64_t>(value), id * 100 + source, say("item of record ", id));
      }
      end += items;
    }
    check_equal(offsets[count], end, "the end");
    check_equal(found.bytes, static_cast<std::uint64_t>(4 * end), "bytes");
  }
  for (std::size_t i = 0; i < count; ++i) {
    std::int64_t value = 0;
    std::memcpy(&value, batch.values[0].get() + 8 * i, 8);
    const std::int64_t source = batch.picks.which.empty() ? 0 : batch.picks.which[i];
    check_equal(value, 3 * (first + static_cast<std::int64_t>(i)) + source, "fixed field");
  }
}

std::vector<std::int32_t> some_sources(std::size_t count, std::int32_t sources) {
  std::vector<std::int32_t> which(count);
  for (std::size_t i = 0; i < count; ++i) which[i] = static_cast<std::int32_t>(i * i % 11 * 31) % sources;
  return which;
}

void records_of_varying_length_come_with_offsets_and_shapes() {
  for (const std::size_t threads : {1, 2, 5}) {
    for (const std::int32_t sources : {1, 2, 7}) {
      for (const RingRoom room : {RingRoom{}, RingRoom{1, 0}, RingRoom{2, 10'000}}) {
        VaryingRing made(sources, threads, room);
        for (const std::size_t count : {0, 1, 5, 700, 3000}) {
          made.ring.put({some_ids(1000, count), sources == 1 ? std::vector<std::int32_t>{} : some_sources(count, sources), {}});
        }
        for (const std::size_t count : {0, 1, 5, 700, 3000}) check_varying(*wait(made.ring), 1000, count);
      }
    }
  }
}

void large_batches_of_varying_length_are_shared_between_threads() {
  VaryingRing made(2, 3);
  made.ring.put({some_ids(1000, 100'000), some_sources(100'000, 2), {}});
  check_varying(*wait(made.ring), 1000, 100'000);
}

void bad_records_of_varying_length_fail_their_batch() {
  for (const std::size_t threads : {1, 3}) {
    VaryingRing made(1, threads, {2, 1000});
    for (const std::int64_t bad : {666, 667, 668, 671, 672}) {
      made.ring.put({{1, 2, bad, 3}, {}, {}});
      made.ring.put({some_ids(100, 3), {}, {}});
    }
    for (int i = 0; i < 5; ++i) {
      check(wait(made.ring)->error != nullptr, say("number ", i, " fails"));
      check_varying(*wait(made.ring), 100, 3);
    }
  }
}

void batches_beyond_the_limit_are_refused_before_their_memory_is_taken() {
  VaryingRing made(1, 2, {}, 100);
  made.ring.put({{1, 2, 3, 8}, {}, {}});  // 8 + 16 + 24 + 8 bytes
  made.ring.put({{6, 6, 6}, {}, {}});     // 3 x 48 bytes
  check(wait(made.ring)->error == nullptr, "within the limit");
  const std::unique_ptr<RingBatch> batch = wait(made.ring);
  check_throws<BatchTooLargeError>([&] { std::rethrow_exception(batch->error); });
  check(batch->varying.empty() || batch->varying[0].values == nullptr, "no memory");
}

// Only one batch fits: the others are measured, but not read before it is taken.
void memory_is_laid_out_only_as_far_as_there_is_room() {
  class Counted final : public VaryingReader {
   public:
    void sizes(std::span<const std::int64_t> rows, std::uint8_t, std::int64_t* sizes, std::uint32_t*) const override {
      std::fill_n(sizes, rows.size(), 100);
    }
    void read(std::span<const std::int64_t> rows, const std::int64_t*, const std::int64_t*, std::byte*) const override {
      count += rows.size();
    }
    void read_parts(std::span<const RecordPart>, std::byte*) const override {}
    std::uint64_t batch_bytes() const override { return 1000; }
    mutable std::atomic<std::size_t> count = 0;
  };
  for (const std::size_t batches : {1, 2, 3}) {
    const Counted reader;
    BatchRing ring({}, {{1, 0, {&reader}}}, 3, {batches, 399});
    const std::size_t room = std::max<std::size_t>(batches, 3);  // three fit the bytes
    for (int i = 0; i < 10; ++i) ring.put({{1}, {}, {}});
    for (std::size_t taken = 1; taken <= 10; ++taken) {
      check(wait(ring)->error == nullptr, "a batch");
      check(reader.count >= taken, "it was read");
      check(reader.count <= std::min<std::size_t>(10, taken + room), "no others were");
    }
  }
  const Counted reader;
  BatchRing ring({}, {{1, 0, {&reader}}}, 1, {1, 0});
  for (int i = 0; i < 5; ++i) ring.put({{1}, {}, {}});
  for (std::size_t taken = 1; taken <= 5; ++taken) {
    check(wait(ring)->error == nullptr, "a batch");
    check(reader.count <= taken + 1, "one at a time");
  }
}

void a_ring_of_varying_length_may_be_left_with_work_in_it() {
  for (int round = 0; round < 30; ++round) {
    VaryingRing made(2, static_cast<std::size_t>(1 + round % 4), {1, 2000});
    for (int i = 0; i < 20; ++i) made.ring.put({some_ids(i * 10, 1000), some_sources(1000, 2), {}});
    if (round % 2 == 0) (void)wait(made.ring);
  }
}

void varying_records_have_no_runs() {
  VaryingRing made(1, 1);
  check_throws<std::logic_error>([&] { made.ring.put({{1}, {}, {0, 3}}); });
}

}  // namespace

int main() {
  seeds_come_with_their_records();
  batches_come_out_in_order();
  large_batches_are_shared_between_threads();
  records_of_several_sources_come_to_their_places();
  records_of_one_source_are_read_together();
  what_is_not_gathered_is_read_source_by_source();
  runs_of_records_come_one_after_the_other();
  an_error_comes_out_at_its_place();
  an_error_of_a_mixture_comes_out_at_its_place();
  a_ring_may_be_left_with_work_in_it();
  waiting_ends_after_a_while();
  records_of_varying_length_come_with_offsets_and_shapes();
  large_batches_of_varying_length_are_shared_between_threads();
  bad_records_of_varying_length_fail_their_batch();
  batches_beyond_the_limit_are_refused_before_their_memory_is_taken();
  memory_is_laid_out_only_as_far_as_there_is_room();
  a_ring_of_varying_length_may_be_left_with_work_in_it();
  varying_records_have_no_runs();
  return finish();
}
