// Draws with replacement: position -> an unbiased integer below n, each computed alone.
#pragma once

#include <cstdint>
#include <span>

namespace penstock {

// out[i] = draw(positions start, start + step, ...) below n; n at least 1.
void random_run(std::uint64_t n, std::uint64_t key, std::uint64_t start, std::uint64_t step, std::span<std::int64_t> out);
void random_at(std::uint64_t n, std::uint64_t key, std::span<const std::int64_t> positions, std::span<std::int64_t> out);

}  // namespace penstock
