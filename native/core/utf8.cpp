#include "core/utf8.h"

#include <cstdint>
#include <cstring>

namespace penstock {

namespace {

// Vectors of two words, which every x86-64 and arm64 has.
typedef std::uint64_t Words __attribute__((vector_size(16)));
constexpr std::ptrdiff_t kStep = 128;

bool is_ascii(const std::uint8_t* p) {
  Words part[kStep / sizeof(Words)];
  std::memcpy(part, p, sizeof(part));
  for (std::size_t width = kStep / sizeof(Words) / 2; width > 0; width /= 2) {
    for (std::size_t i = 0; i < width; ++i) part[i] |= part[i + width];
  }
  return ((part[0][0] | part[0][1]) & 0x8080'8080'8080'8080) == 0;
}

// Bytes of the character that begins at p, which is before the end; 0 if none does.
std::size_t character_bytes(const std::uint8_t* p, const std::uint8_t* end) {
  const auto continues = [&](const std::uint8_t* q, std::uint8_t low = 0x80, std::uint8_t high = 0xBF) {
    return q < end && *q >= low && *q <= high;
  };
  if (*p < 0x80) return 1;
  if (*p >= 0xC2 && *p <= 0xDF && continues(p + 1)) return 2;
  if (*p >= 0xE0 && *p <= 0xEF && continues(p + 1, *p == 0xE0 ? 0xA0 : 0x80, *p == 0xED ? 0x9F : 0xBF) && continues(p + 2)) {
    return 3;
  }
  const bool is_long = *p >= 0xF0 && *p <= 0xF4 && continues(p + 1, *p == 0xF0 ? 0x90 : 0x80, *p == 0xF4 ? 0x8F : 0xBF);
  return is_long && continues(p + 2) && continues(p + 3) ? 4 : 0;
}

}  // namespace

bool is_utf8(std::span<const std::byte> text) {
  const auto* p = reinterpret_cast<const std::uint8_t*>(text.data());
  const std::uint8_t* const end = p + text.size();
  while (p < end) {
    std::uint64_t word = 0;
    if (end - p >= kStep && is_ascii(p)) {
      p += kStep;
    } else if (end - p >= 8 && (std::memcpy(&word, p, 8), (word & 0x8080'8080'8080'8080) == 0)) {
      p += 8;
    } else {
      const std::size_t bytes = character_bytes(p, end);
      if (bytes == 0) return false;
      p += bytes;
    }
  }
  return true;
}

std::string with_escapes(std::string_view text) {
  if (is_utf8(std::as_bytes(std::span(text)))) return std::string(text);
  constexpr char kDigits[] = "0123456789abcdef";
  const auto* p = reinterpret_cast<const std::uint8_t*>(text.data());
  const std::uint8_t* const end = p + text.size();
  std::string made;
  while (p < end) {
    const std::size_t bytes = character_bytes(p, end);
    if (bytes == 0) {
      made.append({'\\', 'x', kDigits[*p >> 4], kDigits[*p & 15]});
    } else {
      made.append(reinterpret_cast<const char*>(p), bytes);
    }
    p += bytes == 0 ? 1 : bytes;
  }
  return made;
}

}  // namespace penstock
