#include "core/random.h"

#include "core/seed.h"

namespace penstock {
namespace {

using Wide = unsigned __int128;

// D. Lemire, "Fast Random Integer Generation in an Interval" (2019), on a 64-bit word per attempt.
std::int64_t draw(std::uint64_t n, std::uint64_t threshold, std::uint64_t key, std::uint64_t position) {
  Wide product = static_cast<Wide>(finalize(key + (position + 1) * kGolden)) * n;
  for (std::uint64_t attempt = 1; static_cast<std::uint64_t>(product) < threshold; ++attempt) [[unlikely]] {
    product = static_cast<Wide>(absorb(absorb(key, position), attempt)) * n;
  }
  return static_cast<std::int64_t>(product >> 64);
}

std::uint64_t rejection_threshold(std::uint64_t n) { return (~n + 1) % n; }  // 2^64 mod n

}  // namespace

void random_run(std::uint64_t n, std::uint64_t key, std::uint64_t start, std::uint64_t step, std::span<std::int64_t> out) {
  const std::uint64_t threshold = rejection_threshold(n);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = draw(n, threshold, key, start + i * step);
}

void random_at(std::uint64_t n, std::uint64_t key, std::span<const std::int64_t> positions, std::span<std::int64_t> out) {
  const std::uint64_t threshold = rejection_threshold(n);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = draw(n, threshold, key, static_cast<std::uint64_t>(positions[i]));
}

}  // namespace penstock
