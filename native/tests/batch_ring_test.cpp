#include "core/batch_ring.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <numeric>

#include "check.h"

using namespace penstock;

namespace {

// Records of eight bytes: the id times three, plus the number of the source. Odd ids of the second field are missing; id 666
// fails.
std::vector<RingField> fields(bool slow = false, std::int64_t sources = 1) {
  std::vector<RingField> made{{8, {}}, {1, {}}};
  for (std::int64_t source = 0; source < sources; ++source) {
    made[0].sources.push_back(
        [=](std::span<const std::int64_t> ids, std::span<const std::int64_t>, std::byte* out, std::uint8_t*) {
          for (std::size_t i = 0; i < ids.size(); ++i) {
            if (ids[i] == 666) throw std::runtime_error("record 666");
            if (slow && i == 0) std::this_thread::sleep_for(std::chrono::microseconds(ids[i] % 7 * 300));
            const std::int64_t value = ids[i] * 3 + source;
            std::memcpy(out + i * 8, &value, 8);
          }
        });
    made[1].sources.push_back(
        [](std::span<const std::int64_t> ids, std::span<const std::int64_t>, std::byte* out, std::uint8_t* present) {
          for (std::size_t i = 0; i < ids.size(); ++i) {
            present[i] = ids[i] % 2 == 0;
            out[i] = static_cast<std::byte>(ids[i]);
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

void large_records_go_straight_to_their_places() {
  constexpr std::size_t stride = 20'000;
  RingField field{stride, {}};
  std::atomic<std::size_t> calls = 0;
  for (int source = 0; source < 3; ++source) {
    field.sources.push_back([&calls, source](std::span<const std::int64_t> ids, std::span<const std::int64_t>, std::byte* out,
                                             std::uint8_t* present) {
      ++calls;
      for (std::size_t i = 0; i < ids.size(); ++i) {
        std::memset(out + i * stride, static_cast<int>(10 * ids[i] + source), stride);
        present[i] = source != 2;
      }
    });
  }
  BatchRing ring({field}, 1);
  ring.put({some_ids(0, 6), {0, 0, 2, 1, 1, 1}, {}});
  const std::unique_ptr<RingBatch> batch = wait(ring);
  const std::vector<int> expected{0, 10, 22, 31, 41, 51};
  for (std::size_t i = 0; i < expected.size(); ++i) {
    for (const std::size_t at : {std::size_t{0}, stride - 1}) {
      check_equal(static_cast<int>(batch->values[0].get()[i * stride + at]), expected[i], say("record ", i));
    }
    check(batch->present[0].get()[i] == std::byte{i != 2}, "presence");
  }
  check_equal(calls.load(), std::size_t{3}, "runs of one source are read together");
}

void runs_of_records_come_one_after_the_other() {
  RingField field{4, {}};
  for (int source = 0; source < 2; ++source) {
    field.sources.push_back(
        [source](std::span<const std::int64_t> ids, std::span<const std::int64_t> offsets, std::byte* out, std::uint8_t*) {
          for (std::size_t i = 0; i < ids.size(); ++i) {
            for (std::int64_t at = offsets[i]; at < offsets[i + 1]; ++at) {
              const auto value = static_cast<std::int32_t>((ids[i] + at - offsets[i]) * 2 + source);
              std::memcpy(out + 4 * at, &value, 4);
            }
          }
        });
  }
  BatchRing ring({field}, 2);
  for (const bool mixed : {false, true}) {
    RingPicks picks{{}, {}, {0}};
    std::vector<std::int32_t> expected;
    for (std::int64_t run = 0; run < 3000; ++run) {
      const std::int64_t start = run * 7919 % 10'007;
      const std::int64_t length = run % 5 == 0 ? 0 : run % 200;
      const std::int32_t source = mixed ? static_cast<std::int32_t>(run * run % 3 % 2) : 0;
      picks.ids.push_back(start);
      if (mixed) picks.which.push_back(source);
      picks.offsets.push_back(picks.offsets.back() + length);
      for (std::int64_t i = 0; i < length; ++i) expected.push_back(static_cast<std::int32_t>((start + i) * 2 + source));
    }
    ring.put(picks);
    const std::unique_ptr<RingBatch> batch = wait(ring);
    check_equal(batch->picks.records(), expected.size(), "records");
    std::vector<std::int32_t> found(expected.size());
    std::memcpy(found.data(), batch->values[0].get(), 4 * found.size());
    check(found == expected, "every record of every run in its place");
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
  const RingFill block = [](std::span<const std::int64_t>, std::span<const std::int64_t>, std::byte*, std::uint8_t*) {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  };
  BatchRing ring({{1, {block}}}, 1);
  ring.put({some_ids(0, 1), {}, {}});
  check(ring.take(5) == nullptr, "not ready yet");
  (void)wait(ring);
}

}  // namespace

int main() {
  batches_come_out_in_order();
  large_batches_are_shared_between_threads();
  records_of_several_sources_come_to_their_places();
  large_records_go_straight_to_their_places();
  runs_of_records_come_one_after_the_other();
  an_error_comes_out_at_its_place();
  an_error_of_a_mixture_comes_out_at_its_place();
  a_ring_may_be_left_with_work_in_it();
  waiting_ends_after_a_while();
  return finish();
}
