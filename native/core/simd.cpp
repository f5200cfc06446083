#include "core/simd.h"

namespace penstock {

std::vector<Simd> available_simd() {
  std::vector<Simd> levels{Simd::plain};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) levels.push_back(Simd::avx2);
  if (__builtin_cpu_supports("avx512f")) levels.push_back(Simd::avx512);
#endif
  return levels;
}

Simd best_simd() {
  static const Simd best = available_simd().back();
  return best;
}

}  // namespace penstock
