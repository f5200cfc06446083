// Copying records of a few bytes without a call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace penstock {

inline void copy_record_bytes(std::byte* out, const std::byte* from, std::uint64_t bytes) {
  switch (bytes) {
    case 0: break;  // from may be null
    case 1: std::memcpy(out, from, 1); break;
    case 2: std::memcpy(out, from, 2); break;
    case 4: std::memcpy(out, from, 4); break;
    case 8: std::memcpy(out, from, 8); break;
    case 16: std::memcpy(out, from, 16); break;
    case 32: std::memcpy(out, from, 32); break;
    case 64: std::memcpy(out, from, 64); break;
    case 128: std::memcpy(out, from, 128); break;
    default: std::memcpy(out, from, bytes);
  }
}

}  // namespace penstock
