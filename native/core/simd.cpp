#include "core/simd.h"

#if defined(__x86_64__)
#include <cpuid.h>

#include <cstdint>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace penstock {
namespace {

#if defined(__x86_64__)

// Asked by hand: what __builtin_cpu_supports needs is not part of every compiler's run-time library (not of zig's, which builds
// the wheels).
struct Registers {
  unsigned a = 0, b = 0, c = 0, d = 0;
};

Registers cpuid(unsigned leaf) {
  Registers found;
  __get_cpuid_count(leaf, 0, &found.a, &found.b, &found.c, &found.d);  // zeros if the processor has no such leaf
  return found;
}

bool has(unsigned word, int bit) { return (word >> bit & 1) != 0; }

// Whether the system saves all registers of a mask (the bits of XCR0) when it switches threads.
bool saves(std::uint32_t mask) {
  if (!has(cpuid(1).c, 27)) return false;  // OSXSAVE
  std::uint32_t low = 0, high = 0;
  asm("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low & mask) == mask;
}

constexpr std::uint32_t kAvxState = 0x06;     // xmm, ymm
constexpr std::uint32_t kAvx512State = 0xE6;  // and the masks, the upper halves of zmm, zmm16 and up

#endif

}  // namespace

std::vector<Simd> available_simd() {
  std::vector<Simd> levels{Simd::plain};
#if defined(__x86_64__)
  if (has(cpuid(7).b, 5) && saves(kAvxState)) levels.push_back(Simd::avx2);
  if (has(cpuid(7).b, 16) && saves(kAvx512State)) levels.push_back(Simd::avx512);
#elif defined(__aarch64__)
  levels.push_back(Simd::neon);  // part of the architecture
#endif
  return levels;
}

Simd best_simd() {
  static const Simd best = available_simd().back();
  return best;
}

bool has_half_instruction() {
#if defined(__x86_64__)
  return has(cpuid(1).c, 29);
#else
  return false;
#endif
}

bool has_crc_instruction() {
#if defined(__x86_64__)
  return has(cpuid(1).c, 20);  // SSE 4.2
#elif defined(__aarch64__) && defined(__linux__)
  return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
#elif defined(__aarch64__) && defined(__APPLE__)
  return true;
#else
  return false;
#endif
}

}  // namespace penstock
