// Permutation(n, key): a uniform-looking bijection of [0, n), any part of which can be computed alone.
//
//   n <= 65,536   a Fisher-Yates table (exactly uniform over the keys' hashes, at most 128 KiB)
//   n >  65,536   the Feistel network of feistel.h (no memory)
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/feistel.h"

namespace penstock {

inline constexpr std::uint64_t kTableLimit = 65'536;
inline constexpr std::uint64_t kMaxLength = (std::uint64_t{1} << 63) - 1;

// Immutable, so safe to use from several threads. Positions and indices must be below n; callers check.
class Permutation {
 public:
  Permutation(std::uint64_t n, std::uint64_t key, Simd level = best_simd());

  std::uint64_t size() const { return network_.n; }
  bool has_table() const { return size() <= kTableLimit; }
  std::span<const std::uint16_t> table() const { return table_; }
  std::size_t memory_bytes() const { return table_.size() * sizeof(std::uint16_t); }

  std::uint64_t forward(std::uint64_t position) const { return has_table() ? table_[position] : network_.forward(position); }

  // out[i] = forward(start + i * step)
  void run(std::uint64_t start, std::uint64_t step, std::span<std::int64_t> out) const;
  // out[i] = forward(positions[i]) and its inverse; out may be the input.
  void forward(std::span<const std::int64_t> positions, std::span<std::int64_t> out) const;
  void inverse(std::span<const std::int64_t> indices, std::span<std::int64_t> out) const;
  std::uint64_t inverse(std::uint64_t index) const;

 private:
  template <class Kernel, class Position>
  void in_tiles(Kernel kernel, std::size_t count, Position position, std::int64_t* out) const;

  Feistel network_;
  Simd level_;
  std::vector<std::uint16_t> table_;
};

}  // namespace penstock
