#include "core/utf8.h"

#include <cstdint>
#include <cstring>

namespace penstock {

bool is_utf8(std::span<const std::byte> text) {
  const auto* p = reinterpret_cast<const std::uint8_t*>(text.data());
  const std::uint8_t* const end = p + text.size();
  const auto continues = [&](const std::uint8_t* q, std::uint8_t low = 0x80, std::uint8_t high = 0xBF) {
    return q < end && *q >= low && *q <= high;
  };
  while (p < end) {
    std::uint64_t words[4];
    if (end - p >= 32 &&
        (std::memcpy(words, p, 32), ((words[0] | words[1] | words[2] | words[3]) & 0x8080'8080'8080'8080) == 0)) {
      p += 32;
    } else if (*p < 0x80) {
      ++p;
    } else if (*p >= 0xC2 && *p <= 0xDF && continues(p + 1)) {
      p += 2;
    } else if (*p >= 0xE0 && *p <= 0xEF && continues(p + 1, *p == 0xE0 ? 0xA0 : 0x80, *p == 0xED ? 0x9F : 0xBF) &&
               continues(p + 2)) {
      p += 3;
    } else if (*p >= 0xF0 && *p <= 0xF4 && continues(p + 1, *p == 0xF0 ? 0x90 : 0x80, *p == 0xF4 ? 0x8F : 0xBF) &&
               continues(p + 2) && continues(p + 3)) {
      p += 4;
    } else {
      return false;
    }
  }
  return true;
}

}  // namespace penstock
