#include "core/permutation.h"

#include <algorithm>
#include <numeric>

#include "core/divider.h"
#include "core/seed.h"

namespace penstock {
namespace {

// The 32-bit word of draw i: half of a SplitMix64 output, two draws to a word.
struct Words {
  std::uint64_t key;

  std::uint64_t pair(std::uint64_t half_i) const { return finalize(key + (half_i + 1) * kGolden); }
  std::uint32_t draw(std::uint64_t i) const { return static_cast<std::uint32_t>(i % 2 == 0 ? pair(i / 2) : pair(i / 2) >> 32); }
  std::uint32_t redraw(std::uint64_t i, std::uint64_t attempt) const {
    return static_cast<std::uint32_t>(absorb(absorb(key, i), attempt) >> 32);
  }
};

// An unbiased integer below bound from the word of draw i: D. Lemire, "Fast Random Integer Generation in an Interval" (2019).
std::uint32_t bounded(const Words& words, std::uint64_t i, std::uint32_t word, std::uint32_t bound) {
  std::uint64_t product = std::uint64_t{word} * bound;
  if (static_cast<std::uint32_t>(product) < bound) [[unlikely]] {
    const std::uint32_t threshold = (~bound + 1) % bound;  // 2^32 mod bound
    for (std::uint64_t attempt = 1; static_cast<std::uint32_t>(product) < threshold; ++attempt) {
      product = std::uint64_t{words.redraw(i, attempt)} * bound;
    }
  }
  return static_cast<std::uint32_t>(product >> 32);
}

std::vector<std::uint16_t> fisher_yates(std::uint32_t n, std::uint64_t key) {
  std::vector<std::uint16_t> table(n);
  std::iota(table.begin(), table.end(), std::uint16_t{0});
  const Words words{key};
  const auto swap_with_draw = [&](std::uint32_t i, std::uint32_t word) {
    std::swap(table[i], table[bounded(words, i, word, i + 1)]);
  };
  std::uint32_t i = n;  // the next draw is i - 1
  if (i > 1 && i % 2 == 1) {
    --i;
    swap_with_draw(i, words.draw(i));
  }
  for (; i > 1; i -= 2) {
    const std::uint64_t pair = words.pair(i / 2 - 1);
    swap_with_draw(i - 1, static_cast<std::uint32_t>(pair >> 32));
    if (i > 2) swap_with_draw(i - 2, static_cast<std::uint32_t>(pair));
  }
  return table;
}

}  // namespace

Permutation::Permutation(std::uint64_t n, std::uint64_t key, Simd level)
    : network_(n > kTableLimit ? Feistel::make(n, key) : Feistel{n, 0, 0, {}}),
      level_(level),
      table_(n > kTableLimit ? std::vector<std::uint16_t>{} : fisher_yates(static_cast<std::uint32_t>(n), key)) {}

// Splits positions into halves a tile at a time for a batch kernel.
template <class Kernel, class Position>
void Permutation::in_tiles(Kernel kernel, std::size_t count, Position position, std::int64_t* out) const {
  constexpr std::size_t kTile = 256;
  const Divider rows(network_.b);
  std::uint32_t left[kTile];
  std::uint32_t right[kTile];
  for (std::size_t done = 0; done < count; done += kTile) {
    const std::size_t size = std::min(kTile, count - done);
    for (std::size_t i = 0; i < size; ++i) {
      const std::uint64_t p = position(done + i);
      const std::uint64_t row = rows.quotient(p);
      left[i] = static_cast<std::uint32_t>(row);
      right[i] = static_cast<std::uint32_t>(p - row * network_.b);
    }
    kernel(network_, left, right, size, out + done);
  }
}

void Permutation::run(std::uint64_t start, std::uint64_t step, std::span<std::int64_t> out) const {
  const auto position = [=](std::size_t i) { return start + i * step; };
  if (has_table()) {
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = table_[position(i)];
  } else if (size() > kVectorLimit) {
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::int64_t>(network_.forward(position(i)));
  } else if (step == 1) {
    feistel_kernel(level_).run(network_, start, out.size(), out.data());
  } else {
    in_tiles(feistel_kernel(level_).forward, out.size(), position, out.data());
  }
}

void Permutation::forward(std::span<const std::int64_t> positions, std::span<std::int64_t> out) const {
  const auto position = [=](std::size_t i) { return static_cast<std::uint64_t>(positions[i]); };
  if (has_table() || size() > kVectorLimit) {
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::int64_t>(forward(position(i)));
  } else {
    in_tiles(feistel_kernel(level_).forward, out.size(), position, out.data());
  }
}

void Permutation::inverse(std::span<const std::int64_t> indices, std::span<std::int64_t> out) const {
  const auto index = [=](std::size_t i) { return static_cast<std::uint64_t>(indices[i]); };
  if (has_table()) {
    std::vector<std::uint16_t> place(table_.size());
    for (std::size_t i = 0; i < table_.size(); ++i) place[table_[i]] = static_cast<std::uint16_t>(i);
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = place[index(i)];
  } else if (size() > kVectorLimit) {
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::int64_t>(network_.inverse(index(i)));
  } else {
    in_tiles(feistel_kernel(level_).inverse, out.size(), index, out.data());
  }
}

std::uint64_t Permutation::inverse(std::uint64_t index) const {
  if (!has_table()) return network_.inverse(index);
  return static_cast<std::uint64_t>(std::find(table_.begin(), table_.end(), static_cast<std::uint16_t>(index)) - table_.begin());
}

}  // namespace penstock
