// Mixtures, also in mixtures, as a tree: the leaf and the record at each position, in one pass.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "core/mixture.h"

namespace penstock {

// One epoch of an order. Safe to use from several threads.
class OrderNode {
 public:
  virtual ~OrderNode() = default;
  // Fills in the leaf and the record at each position; `ids` may be the positions themselves. False if one is not in the epochs
  // that the tree was made for; what was filled in is then worth nothing.
  virtual bool at(std::span<const std::int64_t> positions, std::int32_t* leaves, std::int64_t* ids) const = 0;
  // The same for positions first, first + 1, ...; costs less.
  virtual bool run(std::int64_t first, std::span<std::int32_t> leaves, std::span<std::int64_t> ids) const;
};

// An order of the records of one leaf: those at positions, and at positions from `first` on. Without these, in sequence.
class OrderLeaf final : public OrderNode {
 public:
  using Forward = std::function<void(std::span<const std::int64_t> positions, std::span<std::int64_t> out)>;
  using Run = std::function<void(std::int64_t first, std::span<std::int64_t> out)>;
  OrderLeaf(Forward forward, Run run, std::int32_t leaf) : forward_(std::move(forward)), run_(std::move(run)), leaf_(leaf) {}
  bool at(std::span<const std::int64_t> positions, std::int32_t* leaves, std::int64_t* ids) const override;
  bool run(std::int64_t first, std::span<std::int32_t> leaves, std::span<std::int64_t> ids) const override;

 private:
  Forward forward_;
  Run run_;
  std::int32_t leaf_;
};

// Data set k of a mixture: its elements from `base` on, `length` of them, are the positions of an epoch of its own.
struct MixedPart {
  std::shared_ptr<const OrderNode> order;
  std::int64_t base;
  std::int64_t length;
};

class OrderMix final : public OrderNode {
 public:
  // before: see MixtureLine::at. The line must outlive the node.
  OrderMix(const MixtureLine& line, std::uint64_t root, std::vector<std::int64_t> before, std::vector<MixedPart> parts);
  bool at(std::span<const std::int64_t> positions, std::int32_t* leaves, std::int64_t* ids) const override;
  bool run(std::int64_t first, std::span<std::int32_t> leaves, std::span<std::int64_t> ids) const override;

 private:
  bool run_periods(std::int64_t first, std::span<std::int32_t> leaves, std::span<std::int64_t> ids) const;

  const MixtureLine& line_;
  std::uint64_t root_;
  std::vector<std::int64_t> before_;
  std::vector<MixedPart> parts_;
};

}  // namespace penstock
