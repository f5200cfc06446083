// Little-endian integers in bytes.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace penstock {

template <class T>
T load_le(const std::byte* p) {
  static_assert(std::endian::native == std::endian::little, "penstock's files are little-endian, and so must the machine be");
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

}  // namespace penstock
