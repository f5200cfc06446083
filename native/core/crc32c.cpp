#include "core/crc32c.h"

#include <array>
#include <bit>
#include <cstring>

#include "core/simd.h"

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

}  // namespace

CrcPath best_crc_path() {
  static const CrcPath best = has_crc_instruction() ? CrcPath::hardware : CrcPath::portable;
  return best;
}

std::uint32_t crc32c(std::span<const std::byte> data, std::uint32_t before, CrcPath path) {
#if defined(__x86_64__) || defined(__aarch64__)
  if (path == CrcPath::hardware) return ~crc32c_hardware(data.data(), data.size(), ~before);
#endif
  (void)path;
  return ~portable(data.data(), data.size(), ~before);
}

}  // namespace penstock
