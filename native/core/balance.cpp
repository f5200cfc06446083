#include "core/balance.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <utility>
#include <vector>

namespace penstock {

namespace {

using Samples = std::vector<std::uint32_t>;
using Load = std::pair<std::uint64_t, std::size_t>;  // what a group costs so far, and its turn

// Deals samples, which are in falling order of cost, to groups of the sizes in `room`; those of a group stay in that order. Of
// equal loads the group that is first in `turns` is first.
std::vector<Samples> deal_in_order(std::span<const std::uint64_t> costs, const Samples& samples,
                                   std::span<const std::int64_t> room, std::span<const std::size_t> turns) {
  std::vector<Samples> groups(room.size());
  std::vector<Load> open;  // a heap, the smallest load first
  for (std::size_t turn = 0; turn < turns.size(); ++turn) {
    const auto size = static_cast<std::size_t>(room[turns[turn]]);
    groups[turns[turn]].reserve(size);
    if (size > 0) open.emplace_back(0, turn);
  }
  for (const std::uint32_t sample : samples) {
    std::pop_heap(open.begin(), open.end(), std::greater<>());
    auto& [load, turn] = open.back();
    const std::size_t group = turns[turn];
    groups[group].push_back(sample);
    load += costs[sample];
    if (groups[group].size() == static_cast<std::size_t>(room[group])) {
      open.pop_back();
    } else {
      std::push_heap(open.begin(), open.end(), std::greater<>());
    }
  }
  return groups;
}

Samples by_falling_cost(std::span<const std::uint64_t> costs) {
  // The number of the sample is in the low bits, so that one comparison of words is that of (cost, number).
  std::vector<std::uint64_t> keys(costs.size());
  for (std::size_t i = 0; i < costs.size(); ++i) keys[i] = (kMaxCost - costs[i]) << 23 | i;
  std::sort(keys.begin(), keys.end());
  Samples samples(costs.size());
  for (std::size_t i = 0; i < keys.size(); ++i) samples[i] = static_cast<std::uint32_t>(keys[i] & (kMaxDealt - 1));
  return samples;
}

void check(std::span<const std::uint64_t> costs, std::span<const std::int64_t> room, std::size_t micro_batches,
           std::size_t count) {
  if (costs.size() > kMaxDealt) throw std::invalid_argument("expected at most 2**23 samples of a batch");
  std::uint64_t left = costs.size();
  for (const std::int64_t one : room) {
    if (one < 0 || static_cast<std::uint64_t>(one) > left) throw std::invalid_argument("expected room for every sample once");
    left -= static_cast<std::uint64_t>(one);
  }
  if (left != 0 || count != costs.size() || micro_batches == 0 || room.size() % micro_batches != 0)
    throw std::invalid_argument("expected room for every sample once, and as many slots for each micro-batch");
  if (std::any_of(costs.begin(), costs.end(), [](std::uint64_t cost) { return cost > kMaxCost; }))
    throw std::invalid_argument("expected costs of at most 2**40");
}

std::uint64_t cost_of(std::uint64_t tokens, std::uint64_t linear, std::uint64_t quadratic) {
  using Wide = unsigned __int128;
  constexpr Wide kMost = Wide{1} << 63;
  const Wide each = static_cast<Wide>(quadratic) * tokens + linear;
  const Wide cost = each >= kMost && tokens > 0 ? kMost : each * tokens;
  return static_cast<std::uint64_t>(std::min(cost, kMost));
}

}  // namespace

void deal(std::span<const std::uint64_t> costs, std::span<const std::int64_t> room, std::size_t micro_batches,
          std::span<std::int64_t> out) {
  check(costs, room, micro_batches, out.size());
  const std::size_t world = room.size() / micro_batches;
  std::vector<std::int64_t> of_micro(micro_batches, 0);
  for (std::size_t slot = 0; slot < room.size(); ++slot) of_micro[slot % micro_batches] += room[slot];
  std::vector<std::size_t> turns(std::max(micro_batches, world));
  std::iota(turns.begin(), turns.end(), std::size_t{0});
  const std::vector<Samples> micro =
      deal_in_order(costs, by_falling_cost(costs), of_micro, std::span(turns).first(micro_batches));
  std::vector<std::int64_t> starts(room.size() + 1, 0);
  std::inclusive_scan(room.begin(), room.end(), starts.begin() + 1);
  std::vector<std::int64_t> own(world);
  std::vector<std::uint64_t> totals(world, 0);
  turns.resize(world);
  for (std::size_t m = 0; m < micro_batches; ++m) {
    for (std::size_t rank = 0; rank < world; ++rank) own[rank] = room[rank * micro_batches + m];
    std::stable_sort(turns.begin(), turns.end(),
                     [&](std::size_t a, std::size_t b) { return std::pair(totals[a], a) < std::pair(totals[b], b); });
    std::vector<Samples> ranks = deal_in_order(costs, micro[m], own, turns);
    for (std::size_t rank = 0; rank < world; ++rank) {
      for (const std::uint32_t sample : ranks[rank]) totals[rank] += costs[sample];
      std::sort(ranks[rank].begin(), ranks[rank].end());
      std::copy(ranks[rank].begin(), ranks[rank].end(), out.begin() + starts[rank * micro_batches + m]);
    }
  }
}

void piece_costs(std::span<const std::int64_t> first, std::span<const std::int64_t> owner, std::span<const std::int64_t> count,
                 std::uint64_t linear, std::uint64_t quadratic, std::span<std::uint64_t> out) {
  if (first.size() != out.size() + 1 || owner.size() != count.size())
    throw std::invalid_argument("expected one more edge than samples, and an owner of every run");
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (first[i] < 0 || first[i] > first[i + 1] || static_cast<std::size_t>(first[i + 1]) > owner.size())
      throw std::invalid_argument("expected edges that rise within the runs");
    std::uint64_t cost = 0;
    const auto end = static_cast<std::size_t>(first[i + 1]);
    for (auto run = static_cast<std::size_t>(first[i]); run < end;) {
      const std::int64_t document = owner[run];
      std::uint64_t tokens = 0;
      for (; run < end && owner[run] == document; ++run)
        tokens += static_cast<std::uint64_t>(std::max<std::int64_t>(0, count[run]));
      if (document >= 0) cost += std::min((std::uint64_t{1} << 63) - cost, cost_of(tokens, linear, quadratic));
    }
    out[i] = cost;
  }
}

}  // namespace penstock
