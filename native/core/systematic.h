// Systematic selection: `size` places spread evenly over n, from a random start.
#pragma once

#include <cstdint>
#include <span>

namespace penstock {

// out[i] = ceil((n * (p + 1) - offset) / size) - 1 for p = positions[i]. With 0 <= offset < n and size <= n the results rise
// strictly from p to p + 1, stay below n, and over a uniform offset every place is chosen with probability size / n.
void systematic(std::uint64_t n, std::uint64_t size, std::uint64_t offset, std::span<const std::int64_t> positions,
                std::span<std::int64_t> out);

}  // namespace penstock
