// One lane of plain integers; eight in flight keep a superscalar processor busy.
#include "core/feistel_kernel.h"

namespace penstock {
namespace {

struct Lane {
  static constexpr std::size_t lanes = 1;
  std::uint32_t v;

  static Lane splat(std::uint32_t x) { return {x}; }
  static Lane count_up(std::uint32_t x) { return {x}; }
  static Lane load(const std::uint32_t* p) { return {*p}; }
  friend Lane operator+(Lane x, Lane y) { return {x.v + y.v}; }
  friend Lane operator-(Lane x, Lane y) { return {x.v - y.v}; }
  friend Lane operator^(Lane x, Lane y) { return {x.v ^ y.v}; }
  friend Lane operator*(Lane x, Lane y) { return {x.v * y.v}; }
  static Lane high_half_down(Lane x) { return {x.v >> 16}; }
  static Lane scale(Lane x, Lane m) { return {static_cast<std::uint32_t>((std::uint64_t{x.v} * m.v) >> 32)}; }
  static Lane min(Lane x, Lane y) { return {x.v < y.v ? x.v : y.v}; }
  static Lane wrapped(Lane x, Lane y) { return {x.v == y.v ? ~std::uint32_t{0} : 0}; }
  static Lane choose(Lane mask, Lane x, Lane y) { return {mask.v != 0 ? x.v : y.v}; }
  static bool store_index(Lane left, Lane right, std::uint64_t b, std::uint64_t n, std::int64_t* out) {
    const std::uint64_t index = left.v * b + right.v;
    *out = static_cast<std::int64_t>(index);
    return index >= n;
  }
};

}  // namespace

const FeistelKernel& feistel_plain() { return FeistelKernelOf<Lane>::kernel; }

}  // namespace penstock
