#include "core/random.h"

namespace penstock {

void random_run(std::uint64_t n, std::uint64_t key, std::uint64_t start, std::uint64_t step, std::span<std::int64_t> out) {
  const std::uint64_t threshold = rejection_threshold(n);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = draw(n, threshold, key, start + i * step);
}

void random_at(std::uint64_t n, std::uint64_t key, std::span<const std::int64_t> positions, std::span<std::int64_t> out) {
  const std::uint64_t threshold = rejection_threshold(n);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = draw(n, threshold, key, static_cast<std::uint64_t>(positions[i]));
}

}  // namespace penstock
