// Copying records of a few bytes without a call, to places one after the other or to others.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace penstock {

// Where records go in a batch: record i to place first + i, or to the i-th of a list of places.
class Places {
 public:
  Places() = default;
  explicit Places(const std::uint32_t* list) : list_(list) {}

  std::size_t operator[](std::size_t i) const { return list_ == nullptr ? first_ + i : list_[i]; }
  bool in_a_row() const { return list_ == nullptr; }

  // Of the records from `skipped` on.
  Places behind(std::size_t skipped) const {
    Places rest = *this;
    if (list_ == nullptr) {
      rest.first_ += skipped;
    } else {
      rest.list_ += skipped;
    }
    return rest;
  }

 private:
  const std::uint32_t* list_ = nullptr;
  std::size_t first_ = 0;
};

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

// Records of one size, from wherever they lie to places one after the other.
inline void copy_records(std::byte* out, std::span<const std::byte* const> from, std::uint64_t stride) {
  if (stride == 4) {
    for (std::size_t i = 0; i < from.size(); ++i) std::memcpy(out + i * 4, from[i], 4);
  } else if (stride == 128) {
    for (std::size_t i = 0; i < from.size(); ++i) std::memcpy(out + i * 128, from[i], 128);
  } else if (stride <= 64) {
    for (std::size_t i = 0; i < from.size(); ++i) copy_record_bytes(out + i * stride, from[i], stride);
  } else {
    for (std::size_t i = 0; i < from.size(); ++i) std::memcpy(out + i * stride, from[i], stride);
  }
}

// The same, to any places of `out`.
inline void copy_records(std::byte* out, std::span<const std::byte* const> from, std::uint64_t stride, const Places& places) {
  if (places.in_a_row()) {
    copy_records(out + places[0] * stride, from, stride);
  } else {
    for (std::size_t i = 0; i < from.size(); ++i) copy_record_bytes(out + places[i] * stride, from[i], stride);
  }
}

// Asks for the first bytes of a record that is going to be copied soon; the processor finds out by itself about the rest.
inline void prefetch_record(const std::byte* from, std::uint64_t bytes) {
  __builtin_prefetch(from);
  for (std::uint64_t at = 64; at < std::min<std::uint64_t>(bytes, 256); at += 64) __builtin_prefetch(from + at);
}

}  // namespace penstock
