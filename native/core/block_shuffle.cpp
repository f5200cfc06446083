#include "core/block_shuffle.h"

#include <algorithm>
#include <mutex>
#include <numeric>
#include <unordered_map>
#include <vector>

#include "core/seed.h"

namespace penstock {

// Immutable once made.
struct BlockEpoch::Group {
  GroupPlace place;
  std::uint64_t size;  // in records
  std::uint64_t num_blocks;
  std::uint64_t swapped;  // the short block's rank in the group, which changes places with the last; num_blocks - 1 if none
  Permutation permutation;
  std::vector<std::int64_t> shift;  // shift[q] + x is the id of item x if it is in block q; empty for very wide groups

  std::uint64_t unswap(std::uint64_t q) const { return q == swapped ? num_blocks - 1 : q == num_blocks - 1 ? swapped : q; }
  std::size_t memory_bytes() const {
    return sizeof(Group) + 128 + permutation.memory_bytes() + shift.size() * sizeof(std::int64_t);
  }
};

struct BlockEpoch::Cache {
  std::mutex mutex;
  std::unordered_map<std::uint64_t, std::shared_ptr<const Group>> of_lane;
  std::size_t bytes = 0;
};

namespace {

constexpr std::uint64_t kMaxShift = 65'536;  // blocks in a group whose first ids are kept in a table
constexpr std::size_t kTile = 512;

std::uint64_t count_blocks(const BlockGeometry& g) { return g.n / g.block + (g.n % g.block != 0 ? 1 : 0); }

BlockGeometry cut(BlockGeometry g) {
  g.block = std::max<std::uint64_t>(1, std::min(g.block, g.n));
  g.window = std::max<std::uint64_t>(1, std::min(g.window, count_blocks(g)));
  return g;
}

}  // namespace

BlockEpoch::BlockEpoch(BlockGeometry geometry, std::uint64_t sequence_key, std::uint64_t group_root, Simd level)
    : geometry_(cut(geometry)),
      num_blocks_(count_blocks(geometry_)),
      group_root_(group_root),
      level_(level),
      block_(geometry_.block),
      sequence_(num_blocks_, sequence_key, level),
      missing_(num_blocks_ * geometry_.block - geometry_.n),
      short_lane_(UINT64_MAX),
      short_rank_(UINT64_MAX),
      extra_lanes_(num_blocks_ % geometry_.lanes),
      even_(num_blocks_ / geometry_.lanes * geometry_.block) {
  if (missing_ == 0) return;
  const std::uint64_t place = sequence_.inverse(num_blocks_ - 1);
  short_lane_ = place % geometry_.lanes;
  short_rank_ = place / geometry_.lanes;
  if (short_lane_ >= extra_lanes_) even_ -= missing_;
}

BlockEpoch::~BlockEpoch() = default;

std::uint64_t BlockEpoch::lane_blocks(std::uint64_t lane) const {
  return num_blocks_ / geometry_.lanes + (lane < extra_lanes_ ? 1 : 0);
}

std::uint64_t BlockEpoch::lane_records(std::uint64_t lane) const {
  return lane_blocks(lane) * geometry_.block - (lane == short_lane_ ? missing_ : 0);
}

// How much of the tail is in the lanes before this one.
std::uint64_t BlockEpoch::tail_before(std::uint64_t lane) const {
  const std::uint64_t plain = num_blocks_ / geometry_.lanes * geometry_.block - even_;
  const std::uint64_t all = lane * plain + std::min(lane, extra_lanes_) * geometry_.block;
  return short_lane_ < lane ? all - missing_ : all;
}

BlockEpoch::LanePlace BlockEpoch::place(std::uint64_t position) const {
  const std::uint64_t lanes = geometry_.lanes;
  const std::uint64_t lane = position % lanes;
  const std::uint64_t row = position / lanes;
  if (row < even_) return {lane, row};
  const std::uint64_t tail = geometry_.n - even_ * lanes;
  const std::uint64_t at = lane * (tail / lanes) + std::min(lane, tail % lanes) + (row - even_);
  std::uint64_t low = 0;
  std::uint64_t high = lanes;  // tail_before(low) <= at < tail_before(high)
  while (high - low > 1) {
    const std::uint64_t middle = low + (high - low) / 2;
    (tail_before(middle) <= at ? low : high) = middle;
  }
  return {low, even_ + (at - tail_before(low))};
}

std::uint64_t BlockEpoch::position(LanePlace place) const {
  const std::uint64_t lanes = geometry_.lanes;
  if (place.offset < even_) return place.offset * lanes + place.lane;
  const std::uint64_t tail = geometry_.n - even_ * lanes;
  const std::uint64_t length = tail / lanes;
  const std::uint64_t longer = tail % lanes;  // runs below this have one record more
  const std::uint64_t at = tail_before(place.lane) + (place.offset - even_);
  const std::uint64_t in_longer = longer * (length + 1);
  const std::uint64_t run = at < in_longer ? at / (length + 1) : longer + (at - in_longer) / length;
  const std::uint64_t row = at < in_longer ? at % (length + 1) : (at - in_longer) % length;
  return (even_ + row) * lanes + run;
}

std::uint64_t BlockEpoch::group_start(GroupPlace place) const {
  const std::uint64_t first_rank = place.number * geometry_.window;
  return first_rank * geometry_.block - (place.lane == short_lane_ && short_rank_ < first_rank ? missing_ : 0);
}

BlockEpoch::GroupPlace BlockEpoch::group_of(LanePlace place) const {
  const std::uint64_t records = geometry_.window * geometry_.block;
  if (place.lane == short_lane_) {
    const std::uint64_t short_group = short_rank_ / geometry_.window;
    if (place.offset >= (short_group + 1) * records - missing_) return {place.lane, (place.offset + missing_) / records};
  }
  return {place.lane, place.offset / records};
}

std::shared_ptr<const BlockEpoch::Group> BlockEpoch::make_group(GroupPlace place) const {
  const std::uint64_t first_rank = place.number * geometry_.window;
  const std::uint64_t num_blocks = std::min(geometry_.window, lane_blocks(place.lane) - first_rank);
  const bool has_short = place.lane == short_lane_ && short_rank_ >= first_rank && short_rank_ - first_rank < num_blocks;
  const std::uint64_t size = num_blocks * geometry_.block - (has_short ? missing_ : 0);
  Group group{place,
              size,
              num_blocks,
              has_short ? short_rank_ - first_rank : num_blocks - 1,
              Permutation(size, absorb(group_root_, group_ordinal(place)), level_),
              {}};
  if (num_blocks <= kMaxShift) {
    group.shift.resize(num_blocks);
    std::iota(group.shift.begin(), group.shift.end(), std::int64_t{0});
    block_bases(group, group.shift);
    for (std::uint64_t q = 0; q < num_blocks; ++q) group.shift[q] -= static_cast<std::int64_t>(q * geometry_.block);
  }
  return std::make_shared<const Group>(std::move(group));
}

// Turns numbers of blocks within a group into the first ids of those blocks.
void BlockEpoch::block_bases(const Group& group, std::span<std::int64_t> blocks) const {
  const std::uint64_t first_rank = group.place.number * geometry_.window;
  for (std::int64_t& block : blocks) {
    const std::uint64_t rank = first_rank + group.unswap(static_cast<std::uint64_t>(block));
    block = static_cast<std::int64_t>(rank * geometry_.lanes + group.place.lane);
  }
  sequence_.forward(blocks, blocks);
  for (std::int64_t& block : blocks) block *= static_cast<std::int64_t>(geometry_.block);
}

std::shared_ptr<const BlockEpoch::Group> BlockEpoch::recall_group(GroupPlace place) {
  Cache& cache = cache_.get();
  {
    const std::lock_guard lock(cache.mutex);
    const auto found = cache.of_lane.find(place.lane);
    if (found != cache.of_lane.end() && found->second->place.number == place.number) return found->second;
  }
  std::shared_ptr<const Group> made = make_group(place);
  const std::lock_guard lock(cache.mutex);
  auto& slot = cache.of_lane[place.lane];
  if (slot != nullptr) cache.bytes -= slot->memory_bytes();
  slot = made;
  cache.bytes += made->memory_bytes();
  for (auto other = cache.of_lane.begin(); cache.bytes > kCacheBytes && other != cache.of_lane.end();) {
    if (other->first == place.lane) {
      ++other;
    } else {
      cache.bytes -= other->second->memory_bytes();
      other = cache.of_lane.erase(other);
    }
  }
  return made;
}

// Items first, first + delta, ... of a group, each `stride` places after the one before.
void BlockEpoch::read_group(const Group& group, std::uint64_t first, std::size_t count, Steps steps, std::int64_t* out) const {
  const auto block = static_cast<std::int64_t>(geometry_.block);
  const auto [delta, stride] = steps;
  if (group.permutation.has_table() && !group.shift.empty()) {
    const std::uint16_t* items = group.permutation.table().data() + first;
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint16_t item = items[i * delta];
      out[i * stride] = group.shift[block_.quotient(item)] + item;
    }
    return;
  }
  std::int64_t items[kTile];
  std::int64_t bases[kTile];
  for (std::size_t done = 0; done < count; done += kTile) {
    const std::size_t size = std::min(kTile, count - done);
    group.permutation.run(first + done * delta, delta, {items, size});
    for (std::size_t i = 0; i < size; ++i) {
      bases[i] = static_cast<std::int64_t>(block_.quotient(static_cast<std::uint64_t>(items[i])));
    }
    if (group.shift.empty()) {
      for (std::size_t i = 0; i < size; ++i) items[i] -= bases[i] * block;
      block_bases(group, {bases, size});
    } else {
      for (std::size_t i = 0; i < size; ++i) bases[i] = group.shift[static_cast<std::size_t>(bases[i])];
    }
    for (std::size_t i = 0; i < size; ++i) out[(done + i) * stride] = bases[i] + items[i];
  }
}

void BlockEpoch::run_lane(LanePlace from, std::size_t count, Steps steps, std::int64_t* out) {
  while (count > 0) {
    const std::shared_ptr<const Group> group = recall_group(group_of(from));
    const std::uint64_t first = from.offset - group_start(group->place);
    const std::size_t size = std::min<std::uint64_t>(count, (group->size - first + steps.delta - 1) / steps.delta);
    read_group(*group, first, size, steps, out);
    from.offset += size * steps.delta;
    out += size * steps.stride;
    count -= size;
  }
}

void BlockEpoch::run(std::uint64_t start, std::uint64_t step, std::span<std::int64_t> out) {
  const std::uint64_t common = std::gcd(geometry_.lanes, step);
  // `stride` positions later comes the same lane (or, in the tail, the same run) again, `delta` of its records further on.
  const Steps steps{step / common, geometry_.lanes / common};
  for (std::uint64_t first = 0; first < std::min<std::uint64_t>(steps.stride, out.size()); ++first) {
    for (std::uint64_t i = first; i < out.size();) {
      const LanePlace from = place(start + i * step);
      const std::uint64_t end = from.offset < even_ ? even_ : lane_records(from.lane);
      const std::uint64_t wanted = (out.size() - i + steps.stride - 1) / steps.stride;
      const std::uint64_t count = std::min(wanted, (end - from.offset + steps.delta - 1) / steps.delta);
      run_lane(from, count, steps, out.data() + i);
      i += count * steps.stride;
    }
  }
}

void BlockEpoch::forward(std::span<const std::int64_t> positions, std::span<std::int64_t> out) {
  std::unordered_map<std::uint64_t, std::shared_ptr<const Group>> groups;
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < positions.size(); ++i) {
    const LanePlace at = place(static_cast<std::uint64_t>(positions[i]));
    const GroupPlace in = group_of(at);
    auto& group = groups[group_ordinal(in)];
    if (group == nullptr) {
      group = recall_group(in);
      bytes += group->memory_bytes();
    }
    read_group(*group, at.offset - group_start(in), 1, {1, 1}, &out[i]);
    if (bytes > kCacheBytes) {
      groups.clear();
      bytes = 0;
    }
  }
}

void BlockEpoch::inverse(std::span<const std::int64_t> ids, std::span<std::int64_t> out) {
  std::vector<std::int64_t> ranks(ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i) ranks[i] = ids[i] / static_cast<std::int64_t>(geometry_.block);
  sequence_.inverse(ranks, ranks);
  const auto place_of = [&](std::size_t i) -> GroupPlace {
    const auto rank = static_cast<std::uint64_t>(ranks[i]);
    return {rank % geometry_.lanes, rank / geometry_.lanes / geometry_.window};
  };
  std::vector<std::size_t> by_group(ids.size());  // a group's table is inverted once for all its ids
  std::iota(by_group.begin(), by_group.end(), std::size_t{0});
  std::sort(by_group.begin(), by_group.end(),
            [&](std::size_t x, std::size_t y) { return group_ordinal(place_of(x)) < group_ordinal(place_of(y)); });
  std::vector<std::int64_t> items;
  for (std::size_t from = 0; from < by_group.size();) {
    const std::shared_ptr<const Group> group = recall_group(place_of(by_group[from]));
    std::size_t to = from;
    items.clear();
    for (; to < by_group.size() && group_ordinal(place_of(by_group[to])) == group_ordinal(group->place); ++to) {
      const std::size_t i = by_group[to];
      const std::uint64_t rank = static_cast<std::uint64_t>(ranks[i]) / geometry_.lanes;
      const std::uint64_t in_block = static_cast<std::uint64_t>(ids[i]) % geometry_.block;
      items.push_back(static_cast<std::int64_t>(group->unswap(rank % geometry_.window) * geometry_.block + in_block));
    }
    group->permutation.inverse(items, items);
    for (std::size_t i = from; i < to; ++i) {
      out[by_group[i]] = static_cast<std::int64_t>(
          position({group->place.lane, group_start(group->place) + static_cast<std::uint64_t>(items[i - from])}));
    }
    from = to;
  }
}

}  // namespace penstock
