// crc32c by the instruction of x86-64 (SSE 4.2) and of arm64 (CRC). Compiled with its flag; called only after the processor was
// asked. As in feistel_kernel.h, nothing from the standard library is used that another file could link to.
#include <cstring>

#include "core/crc32c.h"

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__aarch64__)
#include <arm_acle.h>
#endif

namespace penstock {
namespace {

#if defined(__x86_64__)
std::uint64_t step_word(std::uint64_t state, std::uint64_t word) { return _mm_crc32_u64(state, word); }
std::uint32_t step_byte(std::uint32_t state, std::uint8_t byte) { return _mm_crc32_u8(state, byte); }
#elif defined(__aarch64__)
std::uint64_t step_word(std::uint64_t state, std::uint64_t word) { return __crc32cd(static_cast<std::uint32_t>(state), word); }
std::uint32_t step_byte(std::uint32_t state, std::uint8_t byte) { return __crc32cb(state, byte); }
#endif

std::uint64_t load_word(const std::byte* p) {
  std::uint64_t word;
  std::memcpy(&word, p, sizeof word);
  return word;
}

// The crc instruction has a latency of three cycles, so three stripes are run side by side and joined: the state of an earlier
// stripe is advanced over the zeros that stand for the stripes after it. That is linear, hence four table look-ups.
struct Stripe {
  std::size_t bytes;
  std::uint32_t advance[4][256];

  explicit Stripe(std::size_t length) : bytes(length), advance{} {
    for (std::uint32_t bit = 0; bit < 32; ++bit) {
      std::uint64_t state = std::uint32_t{1} << bit;
      for (std::size_t at = 0; at < length; at += 8) state = step_word(state, 0);
      std::uint32_t (&table)[256] = advance[bit / 8];
      for (std::uint32_t byte = 0; byte < 256; ++byte) {
        if ((byte >> bit % 8 & 1) != 0) table[byte] ^= static_cast<std::uint32_t>(state);
      }
    }
  }

  std::uint32_t advanced(std::uint32_t state) const {
    return advance[0][state & 0xFF] ^ advance[1][state >> 8 & 0xFF] ^ advance[2][state >> 16 & 0xFF] ^ advance[3][state >> 24];
  }
};

std::uint32_t striped(const Stripe& stripe, const std::byte*& p, std::size_t& count, std::uint32_t state) {
  const std::size_t bytes = stripe.bytes;
  for (; count >= 3 * bytes; count -= 3 * bytes, p += 3 * bytes) {
    std::uint64_t first = state;
    std::uint64_t second = 0;
    std::uint64_t third = 0;
    for (std::size_t at = 0; at < bytes; at += 8) {
      first = step_word(first, load_word(p + at));
      second = step_word(second, load_word(p + bytes + at));
      third = step_word(third, load_word(p + 2 * bytes + at));
    }
    state = stripe.advanced(static_cast<std::uint32_t>(first)) ^ static_cast<std::uint32_t>(second);
    state = stripe.advanced(state) ^ static_cast<std::uint32_t>(third);
  }
  return state;
}

}  // namespace

std::uint32_t crc32c_hardware(const std::byte* p, std::size_t count, std::uint32_t state) {
  static const Stripe kLong(1344);  // three of them fit one 4 KiB page of records
  static const Stripe kShort(128);
  state = striped(kLong, p, count, state);
  state = striped(kShort, p, count, state);
  std::uint64_t wide = state;
  for (; count >= 8; count -= 8, p += 8) wide = step_word(wide, load_word(p));
  state = static_cast<std::uint32_t>(wide);
  for (; count > 0; --count, ++p) state = step_byte(state, static_cast<std::uint8_t>(*p));
  return state;
}

}  // namespace penstock
