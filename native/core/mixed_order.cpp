#include "core/mixed_order.h"

#include <algorithm>
#include <stdexcept>

#include "core/row_lookup.h"

namespace penstock {

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
  if (before_.size() != parts_.size()) throw std::invalid_argument("expected a number for every data set");
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

}  // namespace penstock
