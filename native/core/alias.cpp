#include "core/alias.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "core/random.h"
#include "core/seed.h"

namespace penstock {
namespace {

using Wide = unsigned __int128;

constexpr std::uint64_t kUnit = std::uint64_t{1} << 32;  // what a column holds

// Weights as whole numbers: scaled by a power of two so that the greatest is in [2^52, 2^53), rounded down. Exact on every
// machine.
class Scaled {
 public:
  explicit Scaled(std::span<const double> weights) : weights_(weights) {
    double most = 0;
    for (const double weight : weights) {
      if (!(weight >= 0) || std::isinf(weight)) throw std::invalid_argument("expected weights that are finite and at least 0");
      most = std::max(most, weight);
    }
    if (most == 0) throw std::invalid_argument("expected a weight above 0");
    int exponent = 0;
    std::frexp(most, &exponent);
    shift_ = 53 - exponent;
  }

  // Weight i; 1 where one above 0 becomes 0.
  std::uint64_t operator[](std::size_t i) const {
    if (weights_[i] == 0) return 0;
    return std::max<std::uint64_t>(1, static_cast<std::uint64_t>(std::ldexp(weights_[i], shift_)));
  }

 private:
  std::span<const double> weights_;
  int shift_ = 0;
};

// What each id has of all columns, in units of which a column holds kUnit: whole numbers with the sum n * kUnit, in proportion to
// the weights up to one unit, and at least 1 where there is a weight.
std::vector<std::uint64_t> shares_of(std::span<const double> weights) {
  const Scaled scaled(weights);
  const auto n = static_cast<Wide>(weights.size());
  Wide sum = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) sum += scaled[i];
  const Wide least = (sum + n * (kUnit - 1) - 1) / (n * (kUnit - 1));
  Wide total = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const std::uint64_t weight = scaled[i];
    if (weight > 0) total += std::max<Wide>(weight, least);
  }
  std::vector<std::uint64_t> shares(weights.size());
  Wide rest = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const std::uint64_t weight = scaled[i];
    if (weight == 0) continue;
    rest += std::max<Wide>(weight, least) * n * kUnit;
    shares[i] = static_cast<std::uint64_t>(rest / total);
    rest %= total;
  }
  return shares;
}

// Sweeps over the ids that have less than a column and those that have more, both in rising order: what a column lacks is filled
// up by the current one of the second kind; when that has a column or less left, the next one fills up its own column.
std::vector<AliasColumn> columns_of(const std::vector<std::uint64_t>& shares) {
  const std::size_t n = shares.size();
  std::vector<AliasColumn> columns(n);
  for (std::size_t i = 0; i < n; ++i) columns[i] = {~std::uint32_t{0}, static_cast<std::uint32_t>(i)};
  const auto next = [&](std::size_t from, auto is_wanted) {
    while (from < n && !is_wanted(shares[from])) ++from;
    return from;
  };
  const auto is_less = [](std::uint64_t share) { return share < kUnit; };
  const auto is_more = [](std::uint64_t share) { return share > kUnit; };
  std::size_t less = next(0, is_less);
  std::size_t more = next(0, is_more);
  if (more == n) return columns;
  std::uint64_t left = shares[more];
  for (;;) {
    if (left > kUnit) {
      columns[less] = {static_cast<std::uint32_t>(shares[less]), static_cast<std::uint32_t>(more)};
      left -= kUnit - shares[less];
      less = next(less + 1, is_less);
      continue;
    }
    const std::size_t after = next(more + 1, is_more);
    if (after == n) return columns;  // the sum is exact: exactly a column is left
    if (left < kUnit) columns[more] = {static_cast<std::uint32_t>(left), static_cast<std::uint32_t>(after)};
    left = shares[after] - (kUnit - left);
    more = after;
  }
}

std::int64_t choose(AliasColumn column, std::uint64_t id, std::uint64_t word) {
  return static_cast<std::int64_t>((word >> 32) < column.bound ? id : column.other);
}

}  // namespace

AliasTable::AliasTable(std::span<const double> weights) {
  if (weights.empty() || weights.size() >= kUnit) throw std::invalid_argument("expected 1 to 2**32 - 1 weights");
  columns_ = columns_of(shares_of(weights));
}

AliasTable::AliasTable(std::span<const AliasColumn> columns) : columns_(columns.begin(), columns.end()) {
  const auto is_outside = [&](AliasColumn column) { return column.other >= columns.size(); };
  if (columns.empty() || columns.size() >= kUnit || std::ranges::any_of(columns_, is_outside)) {
    throw std::invalid_argument("expected 1 to 2**32 - 1 columns that lead to one another");
  }
}

template <class PositionOf>
void AliasTable::fill(std::uint64_t key, std::span<std::int64_t> out, PositionOf position_of) const {
  constexpr std::size_t kAhead = 64;  // columns looked up together: their cache misses overlap
  const std::uint64_t threshold = rejection_threshold(size());
  for (std::size_t low = 0; low < out.size(); low += kAhead) {
    const std::size_t high = std::min(out.size(), low + kAhead);
    std::uint64_t positions[kAhead];
    for (std::size_t i = low; i < high; ++i) {
      positions[i - low] = position_of(i);
      out[i] = draw(size(), threshold, key, positions[i - low]);
      __builtin_prefetch(&columns_[static_cast<std::size_t>(out[i])]);
    }
    for (std::size_t i = low; i < high; ++i) {
      const auto id = static_cast<std::uint64_t>(out[i]);
      out[i] = choose(columns_[id], id, absorb(absorb(key, positions[i - low]), 0));
    }
  }
}

void AliasTable::run(std::uint64_t key, std::uint64_t start, std::uint64_t step, std::span<std::int64_t> out) const {
  fill(key, out, [&](std::size_t i) { return start + i * step; });
}

void AliasTable::at(std::uint64_t key, std::span<const std::int64_t> positions, std::span<std::int64_t> out) const {
  fill(key, out, [&](std::size_t i) { return static_cast<std::uint64_t>(positions[i]); });
}

std::int64_t AliasTable::by_word(std::uint64_t word) const {
  const auto id = static_cast<std::uint64_t>(static_cast<Wide>(word) * size() >> 64);
  return choose(columns_[id], id, absorb(word, 0));
}

void AliasTable::mark_drawn(std::span<std::uint8_t> out) const {
  std::ranges::fill(out, std::uint8_t{0});
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    if (columns_[i].bound > 0) out[i] = 1;
    out[columns_[i].other] = 1;
  }
}

}  // namespace penstock
