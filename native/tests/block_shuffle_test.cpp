#include "core/block_shuffle.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <numeric>
#include <set>
#include <thread>

#include "check.h"
#include "core/seed.h"

using namespace penstock;

namespace {

using Ids = std::vector<std::int64_t>;

constexpr std::uint64_t kSequenceKey = 21;
constexpr std::uint64_t kGroupRoot = 22;

std::string name_of(const BlockGeometry& g) {
  return say("n ", g.n, " block ", g.block, " window ", g.window, " lanes ", g.lanes);
}

BlockEpoch make_epoch(const BlockGeometry& g) { return BlockEpoch(g, kSequenceKey, kGroupRoot); }

Ids run(BlockEpoch& epoch, std::uint64_t start, std::size_t count, std::uint64_t step = 1) {
  Ids out(count, -1);
  epoch.run(start, step, out);
  return out;
}

Ids forward(BlockEpoch& epoch, const Ids& positions) {
  Ids out(positions.size(), -1);
  epoch.forward(positions, out);
  return out;
}

Ids inverse(BlockEpoch& epoch, const Ids& ids) {
  Ids out(ids.size(), -1);
  epoch.inverse(ids, out);
  return out;
}

Ids count_from(std::uint64_t start, std::size_t count, std::uint64_t step = 1) {
  Ids positions(count);
  for (std::size_t i = 0; i < count; ++i) positions[i] = static_cast<std::int64_t>(start + i * step);
  return positions;
}

// The definition at the head of block_shuffle.h with every list written out. Permutation has a test of its own.
class NaiveEpoch {
 public:
  explicit NaiveEpoch(const BlockGeometry& g) : g_(g), num_blocks_((g.n + g.block - 1) / g.block), lanes_(g.lanes) {
    window_ = std::min(g.window, std::max<std::uint64_t>(1, num_blocks_));
    const Permutation sequence(num_blocks_, kSequenceKey);
    std::vector<std::vector<std::uint64_t>> blocks_of(g.lanes);
    for (std::uint64_t j = 0; j < num_blocks_; ++j) blocks_of[j % g.lanes].push_back(sequence.forward(j));
    for (std::uint64_t lane = 0; lane < g.lanes; ++lane) add_groups(lane, blocks_of[lane]);
    even_ = lanes_[0].size();
    for (const Ids& line : lanes_) even_ = std::min(even_, line.size());
  }

  std::uint64_t main_end() const { return even_ * g_.lanes; }

  Ids order() const {
    Ids order(g_.n);
    for (std::uint64_t p = 0; p < main_end(); ++p) order[p] = lanes_[p % g_.lanes][p / g_.lanes];
    Ids tail;
    for (const Ids& line : lanes_) tail.insert(tail.end(), line.begin() + static_cast<std::ptrdiff_t>(even_), line.end());
    std::size_t taken = 0;
    for (std::uint64_t r = 0; r < g_.lanes; ++r) {  // run r fills the places r, r + lanes, ... of the tail
      for (std::uint64_t p = main_end() + r; p < g_.n; p += g_.lanes) order[p] = tail[taken++];
    }
    return order;
  }

 private:
  void add_groups(std::uint64_t lane, const std::vector<std::uint64_t>& blocks) {
    for (std::uint64_t first = 0, number = 0; first < blocks.size(); first += window_, ++number) {
      std::vector<std::uint64_t> group;
      for (std::uint64_t i = first; i < std::min<std::uint64_t>(first + window_, blocks.size()); ++i) group.push_back(blocks[i]);
      for (std::uint64_t& block : group) {
        if (block == num_blocks_ - 1 && g_.n % g_.block != 0) std::swap(block, group.back());  // the short block counts last
      }
      Ids records;
      for (const std::uint64_t block : group) {
        for (std::uint64_t id = block * g_.block; id < std::min((block + 1) * g_.block, g_.n); ++id) {
          records.push_back(static_cast<std::int64_t>(id));
        }
      }
      const Permutation permutation(records.size(), absorb(kGroupRoot, number * g_.lanes + lane));
      for (std::uint64_t i = 0; i < records.size(); ++i) lanes_[lane].push_back(records[permutation.forward(i)]);
    }
  }

  BlockGeometry g_;
  std::uint64_t num_blocks_;
  std::uint64_t window_;
  std::size_t even_ = 0;
  std::vector<Ids> lanes_;
};

void check_slices(BlockEpoch& epoch, const Ids& order, std::uint64_t start, std::uint64_t step, const std::string& name) {
  Ids expected;
  for (std::uint64_t p = start; p < order.size(); p += step) expected.push_back(order[p]);
  check_equal(run(epoch, start, expected.size(), step), expected, say("start ", start, " step ", step, " ", name));
  expected.resize(expected.size() / 2);
  check_equal(run(epoch, start, expected.size(), step), expected, say("half from ", start, " step ", step, " ", name));
}

void check_geometry(const BlockGeometry& g) {
  const std::string name = name_of(g);
  const Ids order = NaiveEpoch(g).order();
  Ids sorted = order;
  std::sort(sorted.begin(), sorted.end());
  check_equal(sorted, count_from(0, g.n), say("sorted ids, ", name));
  BlockEpoch epoch = make_epoch(g);
  check_equal(epoch.size(), g.n);
  check_equal(run(epoch, 0, g.n), order, say("run, ", name));
  check_equal(inverse(epoch, order), count_from(0, g.n), say("inverse, ", name));
  Ids positions = count_from(0, g.n);  // turned round, so that groups are met out of order
  std::reverse(positions.begin(), positions.end());
  check_equal(forward(epoch, positions), Ids(order.rbegin(), order.rend()), say("forward, ", name));
  if (g.n > 0) check_slices(epoch, order, g.n / 3, 1, name);
  for (const std::uint64_t step : {std::uint64_t{2}, std::uint64_t{3}, g.lanes, 2 * g.lanes}) {
    if (g.n > 0) check_slices(epoch, order, (g.n * 7 + step) % std::min(g.n, step), step, name);
  }
}

void small_geometries_equal_the_naive_lists() {
  for (std::uint64_t n = 0; n <= 36; ++n) {
    for (const std::uint64_t block : {1U, 2U, 3U, 4U, 5U, 7U, 50U}) {
      for (const std::uint64_t window : {1U, 2U, 3U, 5U, 60U}) {
        for (const std::uint64_t lanes : {1U, 2U, 3U, 4U, 6U, 9U}) check_geometry({n, block, window, lanes});
      }
    }
  }
}

void middling_geometries_equal_the_naive_lists() {
  check_geometry({10'007, 64, 8, 4});
  check_geometry({10'007, 100, 7, 12});
  check_geometry({9'999, 1, 16, 8});
  check_geometry({300'001, 5'000, 16, 2});   // groups too long for a table of records
  check_geometry({250'003, 3, 70'000, 1});   // groups too wide for a table of blocks, with the short block
  check_geometry({210'000, 1, 100'000, 2});  // the same, without
  check_geometry({131'073, 131'072, 2, 1});
}

void each_group_is_made_of_window_whole_blocks() {
  for (const BlockGeometry& g : {BlockGeometry{960, 8, 5, 4}, BlockGeometry{1000, 10, 25, 2}, BlockGeometry{96, 1, 4, 3}}) {
    BlockEpoch epoch = make_epoch(g);
    for (std::uint64_t lane = 0; lane < g.lanes; ++lane) {
      const Ids line = run(epoch, lane, g.n / g.lanes, g.lanes);
      for (std::size_t first = 0; first < line.size(); first += g.window * g.block) {
        std::vector<std::int64_t> records_of(g.n / g.block);
        for (std::size_t i = first; i < first + g.window * g.block; ++i) {
          ++records_of[static_cast<std::size_t>(line[i]) / g.block];
        }
        const auto whole = std::count(records_of.begin(), records_of.end(), static_cast<std::int64_t>(g.block));
        check_equal(whole, static_cast<std::ptrdiff_t>(g.window), say("whole blocks in the group, ", name_of(g)));
      }
    }
  }
}

void positions_below_the_tail_stay_in_their_lane() {
  for (std::uint64_t n = 1; n <= 200; n += 3) {
    for (const std::uint64_t lanes : {1U, 2U, 3U, 8U}) {
      const BlockGeometry g{n, 4, 3, lanes};
      const std::uint64_t num_blocks = (n + 3) / 4;
      const Permutation sequence(num_blocks, kSequenceKey);
      std::vector<std::uint64_t> length(lanes);  // of each lane, from the sequence alone
      for (std::uint64_t j = 0; j < num_blocks; ++j) length[j % lanes] += std::min<std::uint64_t>(4, n - sequence.forward(j) * 4);
      const std::uint64_t even = *std::min_element(length.begin(), length.end());
      BlockEpoch epoch = make_epoch(g);
      const Ids ids = run(epoch, 0, even * lanes);
      for (std::size_t p = 0; p < ids.size(); ++p) {
        const std::uint64_t place = sequence.inverse(static_cast<std::uint64_t>(ids[p]) / 4);
        check_equal(place % lanes, p % lanes, say("lane at ", p, " ", name_of(g)));
      }
    }
  }
}

void ranks_of_a_world_that_divides_the_lanes_share_no_block() {
  for (const std::uint64_t world : {2U, 3U, 4U, 6U, 12U}) {
    const BlockGeometry g{12 * 5 * 16, 16, 2, 12};
    BlockEpoch epoch = make_epoch(g);
    std::vector<int> readers(g.n / g.block);
    for (std::uint64_t rank = 0; rank < world; ++rank) {
      std::set<std::int64_t> blocks;
      for (const std::int64_t id : run(epoch, rank, g.n / world, world)) blocks.insert(id / 16);
      for (const std::int64_t block : blocks) ++readers[static_cast<std::size_t>(block)];
    }
    check_equal(readers, std::vector<int>(readers.size(), 1), say("readers of each block, world ", world));
  }
}

// Positions at both ends, around the middle and spread over the whole.
Ids far_positions(std::uint64_t n) {
  Ids positions = count_from(0, 40);
  for (const Ids& more : {count_from(n - 40, 40), count_from(n / 2, 40), count_from(n / 9, 60, n / 70)}) {
    positions.insert(positions.end(), more.begin(), more.end());
  }
  return positions;
}

void huge_lengths_round_trip_without_overflow() {
  constexpr std::uint64_t trillion = 1'000'000'000'000;
  constexpr std::uint64_t one = 1;
  for (const BlockGeometry& g :
       {BlockGeometry{trillion, 4096, 1024, 8}, BlockGeometry{trillion + 1, 1'000'003, 7, 5},
        BlockGeometry{trillion, 1, kMaxLength, 1}, BlockGeometry{kMaxLength, one << 40, 64, 16},
        BlockGeometry{kMaxLength, (one << 40) + 1, kMaxLength, 3}, BlockGeometry{kMaxLength, kMaxLength, kMaxLength, 1},
        BlockGeometry{kMaxLength, one << 62, 1, 1}, BlockGeometry{kMaxLength, one << 62, 2, 2},
        BlockGeometry{kMaxLength, (one << 62) - 1, 2, 2}, BlockGeometry{kMaxLength, (one << 61) + 1, 3, 1},
        BlockGeometry{kMaxLength, 1, 1, one << 62}, BlockGeometry{kMaxLength, 1, 5, 3},
        BlockGeometry{kMaxLength, one << 61, 2, kMaxLength}, BlockGeometry{(one << 62) + 1, 1000, 65'537, 64}}) {
    BlockEpoch epoch = make_epoch(g);
    const Ids positions = far_positions(g.n);
    const Ids ids = forward(epoch, positions);
    for (const std::int64_t id : ids) check(id >= 0 && static_cast<std::uint64_t>(id) < g.n, say("id ", id, " ", name_of(g)));
    check_equal(inverse(epoch, ids), positions, say("inverse of forward, ", name_of(g)));
    check_equal(forward(epoch, inverse(epoch, positions)), positions, say("forward of inverse, ", name_of(g)));
    for (const std::uint64_t start : {std::uint64_t{0}, g.n / 2, g.n - 40}) {
      check_equal(run(epoch, start, 40), forward(epoch, count_from(start, 40)), say("run from ", start, " ", name_of(g)));
      if (g.lanes <= 64) {  // by whole turns, so that all positions lie in one lane
        const std::uint64_t from = start - (start > g.n / 2 ? 39 * (g.lanes - 1) : 0);
        const Ids expected = forward(epoch, count_from(from, 40, g.lanes));
        check_equal(run(epoch, from, 40, g.lanes), expected, say("lane from ", from, " ", name_of(g)));
      }
    }
  }
}

// In a huge but even geometry the place of a record follows from the header in a few steps.
void a_huge_even_geometry_equals_the_definition_record_by_record() {
  const BlockGeometry g{std::uint64_t{1} << 50, 1 << 12, 1 << 6, 1 << 5};
  BlockEpoch epoch = make_epoch(g);
  const Permutation sequence(g.n / g.block, kSequenceKey);
  const Ids positions = far_positions(g.n);
  Ids expected;
  for (const std::int64_t position : positions) {
    const std::uint64_t lane = static_cast<std::uint64_t>(position) % g.lanes;
    const std::uint64_t row = static_cast<std::uint64_t>(position) / g.lanes;
    const std::uint64_t number = row / (g.window * g.block);
    const Permutation group(g.window * g.block, absorb(kGroupRoot, number * g.lanes + lane));
    const std::uint64_t item = group.forward(row % (g.window * g.block));
    const std::uint64_t rank = number * g.window + item / g.block;
    expected.push_back(static_cast<std::int64_t>(sequence.forward(rank * g.lanes + lane) * g.block + item % g.block));
  }
  check_equal(forward(epoch, positions), expected);
}

void forgetting_groups_changes_no_result() {
  const BlockGeometry g{520 * 65'536, 65'536, 1, 520};  // 520 tables of 128 KiB are more than the cache keeps
  BlockEpoch epoch = make_epoch(g);
  const Ids first = run(epoch, 0, 520);
  check_equal(run(epoch, 0, 520), first, "second reading");
  check_equal(inverse(epoch, first), count_from(0, 520), "inverse");
}

void every_simd_level_gives_the_same_order() {
  const BlockGeometry g{400'009, 700, 300, 2};
  const Ids expected = NaiveEpoch(g).order();
  for (const Simd level : available_simd()) {
    BlockEpoch epoch(g, kSequenceKey, kGroupRoot, level);
    check_equal(run(epoch, 0, g.n), expected, say("level ", static_cast<int>(level)));
  }
}

void several_threads_may_read_one_epoch() {
  const BlockGeometry g{20'011, 32, 4, 4};
  const Ids order = NaiveEpoch(g).order();
  BlockEpoch epoch = make_epoch(g);
  std::vector<std::thread> readers;
  for (std::uint64_t reader = 0; reader < 4; ++reader) {
    readers.emplace_back([&, reader] {
      for (std::uint64_t start = reader * 31; start + 500 < g.n; start += 777) {
        const auto from = order.begin() + static_cast<std::ptrdiff_t>(start);
        const Ids expected(from, from + 500);
        check_equal(run(epoch, start, 500), expected, say("run from ", start));
        check_equal(inverse(epoch, expected), count_from(start, 500), say("inverse from ", start));
      }
    });
  }
  for (std::thread& reader : readers) reader.join();
}

// True if the child finds the same order; it is killed by its alarm if it hangs.
template <class Work>
bool succeeds_in_a_child(Work work) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(30);
    _exit(work() ? 0 : 1);
  }
  int status = -1;
  check(waitpid(child, &status, 0) == child, "waitpid failed");
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

void a_forked_child_reads_on_and_may_destroy_the_epoch() {
  const BlockGeometry g{5'003, 32, 4, 4};
  const Ids order = NaiveEpoch(g).order();
  auto epoch = std::make_unique<BlockEpoch>(g, kSequenceKey, kGroupRoot);
  check_equal(run(*epoch, 0, 1000), Ids(order.begin(), order.begin() + 1000));
  check(succeeds_in_a_child([&] {
          const bool same = run(*epoch, 0, g.n) == order;
          epoch.reset();
          return same;
        }),
        "the child found another order or did not finish");
  check(succeeds_in_a_child([&] { return epoch.reset(), true; }), "the child could not destroy an epoch it never used");
  check_equal(run(*epoch, 0, g.n), order, "the parent after the fork");
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// Another thread may hold the lock of the cache at the moment of the fork. Not under a sanitizer: their allocators, unlike
// glibc's, can be copied locked as well.
void a_child_forked_while_another_thread_reads_is_not_blocked() {
  const BlockGeometry g{5'003, 8, 1, 1};
  const Ids order = NaiveEpoch(g).order();
  BlockEpoch epoch = make_epoch(g);
  std::atomic<bool> stop{false};
  std::thread reader([&] {
    while (!stop) run(epoch, 0, g.n);
  });
  for (int i = 0; i < 50; ++i) check(succeeds_in_a_child([&] { return run(epoch, 0, g.n) == order; }), "a child failed or hung");
  stop = true;
  reader.join();
}
#else
void a_child_forked_while_another_thread_reads_is_not_blocked() {}
#endif

}  // namespace

int main() {
  alarm(300);  // a hang ends the test
  small_geometries_equal_the_naive_lists();
  middling_geometries_equal_the_naive_lists();
  each_group_is_made_of_window_whole_blocks();
  positions_below_the_tail_stay_in_their_lane();
  ranks_of_a_world_that_divides_the_lanes_share_no_block();
  huge_lengths_round_trip_without_overflow();
  a_huge_even_geometry_equals_the_definition_record_by_record();
  forgetting_groups_changes_no_result();
  every_simd_level_gives_the_same_order();
  several_threads_may_read_one_epoch();
  a_forked_child_reads_on_and_may_destroy_the_epoch();
  a_child_forked_while_another_thread_reads_is_not_blocked();
  return finish();
}
