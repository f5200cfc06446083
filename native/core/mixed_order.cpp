#include "core/mixed_order.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "core/row_lookup.h"

namespace penstock {

bool OrderNode::run(std::int64_t first, std::span<std::int32_t> leaves, std::span<std::int64_t> ids) const {
  std::iota(ids.begin(), ids.end(), first);
  return at(ids, leaves.data(), ids.data());
}

bool OrderLeaf::run(std::int64_t first, std::span<std::int32_t> leaves, std::span<std::int64_t> ids) const {
  if (!run_) return OrderNode::run(first, leaves, ids);
  std::fill(leaves.begin(), leaves.end(), leaf_);
  run_(first, ids);
  return true;
}

bool OrderLeaf::at(std::span<const std::int64_t> positions, std::int32_t* leaves, std::int64_t* ids) const {
  std::fill_n(leaves, positions.size(), leaf_);
  if (forward_) {
    forward_(positions, {ids, positions.size()});
  } else if (ids != positions.data()) {
    std::copy(positions.begin(), positions.end(), ids);
  }
  return true;
}

OrderMix::OrderMix(const MixtureLine& line, std::uint64_t root, std::vector<std::int64_t> before, std::vector<MixedPart> parts)
    : line_(line), root_(root), before_(std::move(before)), parts_(std::move(parts)) {
  if (parts_.empty() || before_.size() != parts_.size()) throw std::invalid_argument("expected a number for every data set");
}

bool OrderMix::at(std::span<const std::int64_t> positions, std::int32_t* leaves, std::int64_t* ids) const {
  const std::size_t count = positions.size();
  std::vector<std::int32_t> which(count);
  std::vector<std::int64_t> elements(count);
  std::vector<std::int64_t> order(count);
  std::vector<std::int64_t> ends(parts_.size());
  std::vector<std::int64_t> own(count);
  std::vector<std::int32_t> own_leaves(count);
  line_.at(root_, positions, which, elements, before_);
  group_by(which, order, ends);
  std::size_t low = 0;
  for (std::size_t k = 0; k < parts_.size(); ++k) {
    const MixedPart& part = parts_[k];
    const auto high = static_cast<std::size_t>(ends[k]);
    for (std::size_t i = low; i < high; ++i) {
      own[i] = elements[static_cast<std::size_t>(order[i])] - part.base;
      if (own[i] < 0 || own[i] >= part.length) return false;
    }
    std::int64_t* const here = own.data() + low;  // the records take the room of their positions
    if (high > low && !part.order->at({here, high - low}, own_leaves.data() + low, here)) return false;
    low = high;
  }
  for (std::size_t i = 0; i < count; ++i) {
    const auto place = static_cast<std::size_t>(order[i]);
    leaves[place] = own_leaves[i];
    ids[place] = own[i];
  }
  return true;
}

bool OrderMix::run(std::int64_t first, std::span<std::int32_t> leaves, std::span<std::int64_t> ids) const {
  return run_periods(first, leaves, ids) || OrderNode::run(first, leaves, ids);
}

// Each data set gives a run of its own order to whole periods, whose positions are then only looked up. (A batch of 256 of two
// shuffled data sets, 16 batches at once: 1.6 us, with at() 4.5.)
bool OrderMix::run_periods(std::int64_t first, std::span<std::int32_t> leaves, std::span<std::int64_t> ids) const {
  const auto places = std::make_unique_for_overwrite<std::uint32_t[]>(ids.size());
  std::vector<std::int64_t> elements(parts_.size());
  std::vector<std::int64_t> counts(parts_.size());
  if (!line_.run(root_, first, {places.get(), ids.size()}, elements, counts, before_)) return false;
  const auto total = static_cast<std::size_t>(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}));
  const auto all_own = std::make_unique_for_overwrite<std::int64_t[]>(total);
  const auto all_leaves = std::make_unique_for_overwrite<std::int32_t[]>(total);
  const std::span<std::int64_t> own(all_own.get(), total);
  const std::span<std::int32_t> own_leaves(all_leaves.get(), total);
  std::size_t low = 0;
  for (std::size_t k = 0; k < parts_.size(); ++k) {
    const MixedPart& part = parts_[k];
    const std::int64_t begin = elements[k] - part.base;
    const auto count = static_cast<std::size_t>(counts[k]);
    if (count == 0) continue;
    if (begin < 0 || begin > part.length || counts[k] > part.length - begin) return false;
    if (!part.order->run(begin, own_leaves.subspan(low, count), own.subspan(low, count))) return false;
    low += count;
  }
  for (std::size_t i = 0; i < ids.size(); ++i) {
    leaves[i] = own_leaves[places[i]];
    ids[i] = own[places[i]];
  }
  return true;
}

}  // namespace penstock
