// An 8-round generalised Feistel network on Z_a x Z_b with cycle walking: a keyed bijection of [0, n) in O(1) memory.
// J. Black, P. Rogaway, "Ciphers with Arbitrary Finite Domains" (CT-RSA 2002).
//
//   position p = left * b + right,   a = ceil(sqrt(n)),   b = ceil(n / a)
//   round 0, 2, 4, 6:   right = (right + F(left))  mod b
//   round 1, 3, 5, 7:   left  = (left  + F(right)) mod a
//   repeat the eight rounds while the result is not below n (fewer than 1 in 256 results for n > 65,536)
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/simd.h"

namespace penstock {

inline constexpr int kFeistelRounds = 8;

struct RoundKey {
  std::uint32_t before;  // xored in before the first multiplication
  std::uint32_t middle;  // xored in before the second
};

struct Feistel {
  std::uint64_t n;
  std::uint64_t a;
  std::uint64_t b;
  std::array<RoundKey, kFeistelRounds> keys;

  // n must be in [1, 2^63).
  static Feistel make(std::uint64_t n, std::uint64_t key);

  std::uint64_t forward(std::uint64_t position) const;
  std::uint64_t inverse(std::uint64_t index) const;
};

inline constexpr std::uint32_t kRoundMultiplier1 = 0x9E3779B1;
inline constexpr std::uint32_t kRoundMultiplier2 = 0x85EBCA6B;

// The round function before it is scaled to [0, modulus): high bits of the result depend on every bit of the input.
constexpr std::uint32_t round_hash(std::uint32_t half, RoundKey key) {
  std::uint32_t z = (half ^ key.before) * kRoundMultiplier1;
  z ^= z >> 16;
  return (z ^ key.middle) * kRoundMultiplier2;
}

constexpr std::uint64_t scale(std::uint32_t hash, std::uint64_t modulus) { return (hash * modulus) >> 32; }

// Batch kernels. They need both halves below 2^31 (n <= 2^62), so that the sum of two halves fits 32 bits.
inline constexpr std::uint64_t kVectorLimit = std::uint64_t{1} << 62;

struct FeistelKernel {
  // out[i] = forward(start + i); b must be at least 128, and start + count at most n.
  void (*run)(const Feistel&, std::uint64_t start, std::size_t count, std::int64_t* out);
  // out[i] = forward(left[i] * b + right[i]), and the inverse; halves below a and b.
  void (*forward)(const Feistel&, const std::uint32_t* left, const std::uint32_t* right, std::size_t count, std::int64_t* out);
  void (*inverse)(const Feistel&, const std::uint32_t* left, const std::uint32_t* right, std::size_t count, std::int64_t* out);
};

const FeistelKernel& feistel_kernel(Simd level);

}  // namespace penstock
