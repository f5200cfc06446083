#include "core/crc32c.h"

#include <array>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace penstock {
namespace {

constexpr std::uint32_t kPolynomial = 0x82F63B78;

using ByteTable = std::array<std::uint32_t, 256>;

// tables[k][byte]: what byte contributes when k more bytes follow it.
constexpr std::array<ByteTable, 8> make_slices() {
  std::array<ByteTable, 8> tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    tables[0][byte] = crc;
  }
  for (std::size_t k = 1; k < tables.size(); ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      tables[k][byte] = (tables[k - 1][byte] >> 8) ^ tables[0][tables[k - 1][byte] & 0xFF];
    }
  }
  return tables;
}

constexpr auto kSlices = make_slices();

std::uint64_t load_word(const std::byte* p) {
  std::uint64_t word;
  std::memcpy(&word, p, sizeof word);
  if constexpr (std::endian::native == std::endian::big) word = __builtin_bswap64(word);
  return word;
}

std::uint32_t step_byte(std::uint32_t state, std::byte byte) {
  return (state >> 8) ^ kSlices[0][(state ^ static_cast<std::uint32_t>(byte)) & 0xFF];
}

std::uint32_t portable(const std::byte* p, std::size_t count, std::uint32_t state) {
  for (; count >= 8; count -= 8, p += 8) {
    const std::uint64_t word = load_word(p) ^ state;
    state = 0;
    for (std::size_t k = 0; k < 8; ++k) state ^= kSlices[7 - k][(word >> (8 * k)) & 0xFF];
  }
  for (; count > 0; --count, ++p) state = step_byte(state, *p);
  return state;
}

#if defined(__x86_64__)

// The crc instruction has a latency of three cycles, so three stripes are run side by side and joined: the state of an earlier
// stripe is advanced over the zeros that stand for the stripes after it. That is linear, hence four table look-ups.
struct Stripe {
  std::size_t bytes;
  std::array<ByteTable, 4> advance;
};

constexpr std::uint32_t advance_zeros(std::uint32_t state, std::size_t bytes) {
  for (; bytes > 0; --bytes) state = (state >> 8) ^ kSlices[0][state & 0xFF];
  return state;
}

Stripe make_stripe(std::size_t bytes) {
  Stripe stripe{bytes, {}};
  std::array<std::uint32_t, 32> of_bit{};
  for (std::size_t bit = 0; bit < 32; ++bit) of_bit[bit] = advance_zeros(std::uint32_t{1} << bit, bytes);
  for (std::size_t k = 0; k < 4; ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      for (std::size_t bit = 0; bit < 8; ++bit) {
        if ((byte >> bit & 1) != 0) stripe.advance[k][byte] ^= of_bit[8 * k + bit];
      }
    }
  }
  return stripe;
}

std::uint32_t advance(const Stripe& stripe, std::uint32_t state) {
  return stripe.advance[0][state & 0xFF] ^ stripe.advance[1][state >> 8 & 0xFF] ^ stripe.advance[2][state >> 16 & 0xFF] ^
         stripe.advance[3][state >> 24];
}

[[gnu::target("sse4.2")]] std::uint32_t striped(const Stripe& stripe, const std::byte*& p, std::size_t& count,
                                                std::uint32_t state) {
  const std::size_t bytes = stripe.bytes;
  for (; count >= 3 * bytes; count -= 3 * bytes, p += 3 * bytes) {
    std::uint64_t first = state;
    std::uint64_t second = 0;
    std::uint64_t third = 0;
    for (std::size_t at = 0; at < bytes; at += 8) {
      first = _mm_crc32_u64(first, load_word(p + at));
      second = _mm_crc32_u64(second, load_word(p + bytes + at));
      third = _mm_crc32_u64(third, load_word(p + 2 * bytes + at));
    }
    state = advance(stripe, static_cast<std::uint32_t>(first)) ^ static_cast<std::uint32_t>(second);
    state = advance(stripe, state) ^ static_cast<std::uint32_t>(third);
  }
  return state;
}

[[gnu::target("sse4.2")]] std::uint32_t hardware(const std::byte* p, std::size_t count, std::uint32_t state) {
  static const Stripe kLong = make_stripe(1344);  // three of them fit one 4 KiB page of records
  static const Stripe kShort = make_stripe(128);
  state = striped(kLong, p, count, state);
  state = striped(kShort, p, count, state);
  std::uint64_t wide = state;
  for (; count >= 8; count -= 8, p += 8) wide = _mm_crc32_u64(wide, load_word(p));
  state = static_cast<std::uint32_t>(wide);
  for (; count > 0; --count, ++p) state = _mm_crc32_u8(state, static_cast<std::uint8_t>(*p));
  return state;
}

#endif

}  // namespace

CrcPath best_crc_path() {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2");
  return has_instruction ? CrcPath::hardware : CrcPath::portable;
#else
  return CrcPath::portable;
#endif
}

std::uint32_t crc32c(std::span<const std::byte> data, std::uint32_t before, CrcPath path) {
#if defined(__x86_64__)
  if (path == CrcPath::hardware) return ~hardware(data.data(), data.size(), ~before);
#endif
  (void)path;
  return ~portable(data.data(), data.size(), ~before);
}

}  // namespace penstock
