#include "core/feistel.h"

#include <cmath>

#include "core/feistel_kernel.h"
#include "core/seed.h"

namespace penstock {
namespace {

std::uint64_t ceil_sqrt(std::uint64_t n) {
  auto root = static_cast<std::uint64_t>(std::sqrt(static_cast<double>(n)));  // off by a few at most; made exact below
  while (root * root >= n && root > 0) --root;
  while (root * root < n) ++root;
  return root;
}

std::uint64_t add_mod(std::uint64_t x, std::uint64_t y, std::uint64_t modulus) {
  const std::uint64_t sum = x + y;
  return sum >= modulus ? sum - modulus : sum;
}

std::uint64_t sub_mod(std::uint64_t x, std::uint64_t y, std::uint64_t modulus) { return x >= y ? x - y : x + modulus - y; }

}  // namespace

Feistel Feistel::make(std::uint64_t n, std::uint64_t key) {
  const std::uint64_t a = ceil_sqrt(n);
  Feistel f{n, a, (n + a - 1) / a, {}};
  for (std::size_t round = 0; round < f.keys.size(); ++round) {
    const std::uint64_t word = absorb(key, round);
    f.keys[round] = {static_cast<std::uint32_t>(word), static_cast<std::uint32_t>(word >> 32)};
  }
  return f;
}

std::uint64_t Feistel::forward(std::uint64_t position) const {
  do {
    std::uint64_t left = position / b;
    std::uint64_t right = position % b;
    for (std::size_t round = 0; round < keys.size(); round += 2) {
      right = add_mod(right, scale(round_hash(static_cast<std::uint32_t>(left), keys[round]), b), b);
      left = add_mod(left, scale(round_hash(static_cast<std::uint32_t>(right), keys[round + 1]), a), a);
    }
    position = left * b + right;
  } while (position >= n);
  return position;
}

std::uint64_t Feistel::inverse(std::uint64_t index) const {
  do {
    std::uint64_t left = index / b;
    std::uint64_t right = index % b;
    for (std::size_t round = keys.size(); round > 0; round -= 2) {
      left = sub_mod(left, scale(round_hash(static_cast<std::uint32_t>(right), keys[round - 1]), a), a);
      right = sub_mod(right, scale(round_hash(static_cast<std::uint32_t>(left), keys[round - 2]), b), b);
    }
    index = left * b + right;
  } while (index >= n);
  return index;
}

const FeistelKernel& feistel_kernel(Simd level) {
#if defined(__x86_64__)
  if (level == Simd::avx512) return feistel_avx512();
  if (level == Simd::avx2) return feistel_avx2();
#elif defined(__aarch64__)
  if (level == Simd::neon) return feistel_neon();
#endif
  (void)level;
  return feistel_plain();
}

}  // namespace penstock
