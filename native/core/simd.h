// What the processor can do, asked at run time. Every level of a kernel gives bit-identical results.
#pragma once

#include <vector>

namespace penstock {

enum class Simd { plain, avx2, avx512, neon };

// The levels this processor can run, slowest first.
std::vector<Simd> available_simd();

// The fastest of them.
Simd best_simd();

// Whether image_avx2.cpp can run where AVX2 can: F16C.
bool has_half_instruction();

// Whether crc32c_hardware.cpp can run.
bool has_crc_instruction();

}  // namespace penstock
