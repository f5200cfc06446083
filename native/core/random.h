// Draws with replacement: position -> an unbiased integer below n, each computed alone.
#pragma once

#include <cstdint>
#include <span>

#include "core/seed.h"

namespace penstock {

// 2^64 mod n: words below it, as the low half of the product in draw, are drawn again.
inline std::uint64_t rejection_threshold(std::uint64_t n) { return (~n + 1) % n; }

// D. Lemire, "Fast Random Integer Generation in an Interval" (2019), on a 64-bit word per attempt.
inline std::int64_t draw(std::uint64_t n, std::uint64_t threshold, std::uint64_t key, std::uint64_t position) {
  using Wide = unsigned __int128;
  Wide product = static_cast<Wide>(finalize(key + (position + 1) * kGolden)) * n;
  for (std::uint64_t attempt = 1; static_cast<std::uint64_t>(product) < threshold; ++attempt) [[unlikely]] {
    product = static_cast<Wide>(absorb(absorb(key, position), attempt)) * n;
  }
  return static_cast<std::int64_t>(product >> 64);
}

// out[i] = draw(positions start, start + step, ...) below n; n at least 1.
void random_run(std::uint64_t n, std::uint64_t key, std::uint64_t start, std::uint64_t step, std::span<std::int64_t> out);
void random_at(std::uint64_t n, std::uint64_t key, std::span<const std::int64_t> positions, std::span<std::int64_t> out);

}  // namespace penstock
