// Draws in proportion to weights: an alias table (Walker 1977, Vose 1991) in exact integers, and draws from it by position.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace penstock {

// A column of the table gives its own id if a 32-bit word is below `bound`, else `other`.
struct AliasColumn {
  std::uint32_t bound;
  std::uint32_t other;
};

// Immutable; safe to use from several threads. The arithmetic is in docs/reference/order.md.
class AliasTable {
 public:
  // One weight or more, below 2^32 of them: finite, none negative, one above 0.
  explicit AliasTable(std::span<const double> weights);
  // The columns of another table; throws std::invalid_argument if they lead out of it.
  explicit AliasTable(std::span<const AliasColumn> columns);

  std::uint64_t size() const { return columns_.size(); }
  std::span<const AliasColumn> columns() const { return columns_; }

  // out[i] = the id drawn at positions start, start + step, ...
  void run(std::uint64_t key, std::uint64_t start, std::uint64_t step, std::span<std::int64_t> out) const;
  void at(std::uint64_t key, std::span<const std::int64_t> positions, std::span<std::int64_t> out) const;

  // The id that one word draws; used where a record takes the place of another one.
  std::int64_t by_word(std::uint64_t word) const;

  // out[id] = 1 if an id can be drawn at all, else 0.
  void mark_drawn(std::span<std::uint8_t> out) const;

 private:
  template <class PositionOf>
  void fill(std::uint64_t key, std::span<std::int64_t> out, PositionOf position_of) const;

  std::vector<AliasColumn> columns_;
};

}  // namespace penstock
