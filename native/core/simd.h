// Which instruction set a kernel uses. Every level gives bit-identical results.
#pragma once

#include <vector>

namespace penstock {

enum class Simd { plain, avx2, avx512 };

// The levels this processor can run, slowest first.
std::vector<Simd> available_simd();

// The fastest of them.
Simd best_simd();

}  // namespace penstock
