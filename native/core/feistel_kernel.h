// The batch kernels of feistel.h, written once over a vector type V. Each feistel_<level>.cpp supplies V, is compiled with the
// flags of its level, and must use nothing from the standard library that another file could link to.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/feistel.h"

namespace penstock {

const FeistelKernel& feistel_plain();
const FeistelKernel& feistel_avx2();
const FeistelKernel& feistel_avx512();
const FeistelKernel& feistel_neon();

// Vectors in flight: the rounds of one vector wait for each other, so several are interleaved (8 lanes on Zen 3:
// 3.8 ns per index with one vector, 1.9 with four, 1.6 with eight).
inline constexpr std::size_t kInFlight = 8;
inline constexpr std::size_t kMaxTile = 16 * kInFlight;

// V has: lanes; splat(x); count_up(x) = x, x + 1, ...; load(p); operators + - ^ *; high_half_down(v) = v >> 16;
// scale(v, m) = (v * m) >> 32; min(v, w); wrapped(v, w): all ones where v == w; choose(mask, v, w);
// bool store_index(left, right, b, n, out): writes left * b + right, true if any is not below n.
template <class V>
struct FeistelKernelOf {
  static constexpr std::size_t kTile = V::lanes * kInFlight;
  static_assert(kTile <= kMaxTile);

  struct Tile {
    V left[kInFlight];
    V right[kInFlight];
  };

  [[gnu::always_inline]] static V offset(V half, RoundKey key, V modulus) {
    V z = (half ^ V::splat(key.before)) * V::splat(kRoundMultiplier1);
    z = z ^ V::high_half_down(z);
    return V::scale((z ^ V::splat(key.middle)) * V::splat(kRoundMultiplier2), modulus);
  }

  // With x, y < m <= 2^31 exactly one of s and s - m (or s + m) is in [0, m), and it is the smaller one as an unsigned number.
  [[gnu::always_inline]] static V add_mod(V x, V y, V m) { return V::min(x + y, x + y - m); }
  [[gnu::always_inline]] static V sub_mod(V x, V y, V m) { return V::min(x - y, x - y + m); }

  [[gnu::always_inline]] static void right_round(const Feistel& f, std::size_t round, Tile& t, V b) {
#pragma GCC unroll 8
    for (std::size_t j = 0; j < kInFlight; ++j) t.right[j] = add_mod(t.right[j], offset(t.left[j], f.keys[round], b), b);
  }

  [[gnu::always_inline]] static void left_round(const Feistel& f, std::size_t round, Tile& t, V a) {
#pragma GCC unroll 8
    for (std::size_t j = 0; j < kInFlight; ++j) t.left[j] = add_mod(t.left[j], offset(t.right[j], f.keys[round], a), a);
  }

  template <bool kInverse>
  [[gnu::always_inline]] static void store(const Feistel& f, const Tile& t, std::int64_t* out) {
    bool outside = false;
#pragma GCC unroll 8
    for (std::size_t j = 0; j < kInFlight; ++j) {
      outside |= V::store_index(t.left[j], t.right[j], f.b, f.n, out + j * V::lanes);
    }
    if (outside) [[unlikely]] {
      for (std::size_t i = 0; i < kTile; ++i) {
        const auto index = static_cast<std::uint64_t>(out[i]);
        if (index >= f.n) out[i] = static_cast<std::int64_t>(kInverse ? f.inverse(index) : f.forward(index));
      }
    }
  }

  // One tile of consecutive positions. They lie in at most two rows of the a x b grid (b >= kMaxTile), so the first round, which
  // depends on the row alone, is computed twice instead of once per position.
  [[gnu::always_inline]] static void run_tile(const Feistel& f, std::uint32_t row, std::uint32_t column, std::int64_t* out) {
    const V a = V::splat(static_cast<std::uint32_t>(f.a));
    const V b = V::splat(static_cast<std::uint32_t>(f.b));
    const V this_row = V::splat(static_cast<std::uint32_t>(scale(round_hash(row, f.keys[0]), f.b)));
    const V next_row = V::splat(static_cast<std::uint32_t>(scale(round_hash(row + 1, f.keys[0]), f.b)));
    Tile t;
#pragma GCC unroll 8
    for (std::size_t j = 0; j < kInFlight; ++j) {
      const V plain = V::count_up(column + static_cast<std::uint32_t>(j * V::lanes));
      const V beyond = plain - b;
      const V right = V::min(plain, beyond);
      const V wrapped = V::wrapped(right, beyond);
      t.left[j] = V::splat(row) - wrapped;
      t.right[j] = add_mod(right, V::choose(wrapped, next_row, this_row), b);
    }
    left_round(f, 1, t, a);
#pragma GCC unroll 4
    for (std::size_t round = 2; round < kFeistelRounds; round += 2) {
      right_round(f, round, t, b);
      left_round(f, round + 1, t, a);
    }
    store<false>(f, t, out);
  }

  static void run(const Feistel& f, std::uint64_t start, std::size_t count, std::int64_t* out) {
    auto row = static_cast<std::uint32_t>(start / f.b);
    auto column = static_cast<std::uint32_t>(start % f.b);
    const auto b = static_cast<std::uint32_t>(f.b);
    for (; count >= kTile; count -= kTile, out += kTile) {
      run_tile(f, row, column, out);
      column += static_cast<std::uint32_t>(kTile);
      if (column >= b) {
        column -= b;
        ++row;
      }
    }
    std::uint32_t left[kTile];
    std::uint32_t right[kTile];
    for (std::size_t i = 0; i < count; ++i) {
      const auto ahead = column + static_cast<std::uint32_t>(i);
      left[i] = ahead < b ? row : row + 1;
      right[i] = ahead < b ? ahead : ahead - b;
    }
    gather<false>(f, left, right, count, out);
  }

  template <bool kInverse>
  static void tile(const Feistel& f, const std::uint32_t* left, const std::uint32_t* right, std::int64_t* out) {
    const V a = V::splat(static_cast<std::uint32_t>(f.a));
    const V b = V::splat(static_cast<std::uint32_t>(f.b));
    Tile t;
    for (std::size_t j = 0; j < kInFlight; ++j) {
      t.left[j] = V::load(left + j * V::lanes);
      t.right[j] = V::load(right + j * V::lanes);
    }
    if constexpr (kInverse) {
      for (std::size_t round = kFeistelRounds; round > 0; round -= 2) {
#pragma GCC unroll 8
        for (std::size_t j = 0; j < kInFlight; ++j) t.left[j] = sub_mod(t.left[j], offset(t.right[j], f.keys[round - 1], a), a);
#pragma GCC unroll 8
        for (std::size_t j = 0; j < kInFlight; ++j) t.right[j] = sub_mod(t.right[j], offset(t.left[j], f.keys[round - 2], b), b);
      }
    } else {
      for (std::size_t round = 0; round < kFeistelRounds; round += 2) {
        right_round(f, round, t, b);
        left_round(f, round + 1, t, a);
      }
    }
    store<kInverse>(f, t, out);
  }

  template <bool kInverse>
  static void gather(const Feistel& f, const std::uint32_t* left, const std::uint32_t* right, std::size_t count,
                     std::int64_t* out) {
    for (; count >= kTile; count -= kTile, left += kTile, right += kTile, out += kTile) tile<kInverse>(f, left, right, out);
    if (count > 0) {
      std::uint32_t rest_left[kTile] = {};
      std::uint32_t rest_right[kTile] = {};
      std::int64_t rest[kTile];
      for (std::size_t i = 0; i < count; ++i) {
        rest_left[i] = left[i];
        rest_right[i] = right[i];
      }
      tile<kInverse>(f, rest_left, rest_right, rest);
      for (std::size_t i = 0; i < count; ++i) out[i] = rest[i];
    }
  }

  static constexpr FeistelKernel kernel{run, gather<false>, gather<true>};
};

}  // namespace penstock
