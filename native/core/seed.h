// Key derivation: every random decision in penstock starts from these functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "core/little_endian.h"

namespace penstock {

inline constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15;

// The SplitMix64 finalizer (Steele, Lea & Flood 2014, constants by Stafford): a bijection of 64-bit words.
constexpr std::uint64_t finalize(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

// Mixes one more word into a hash.
constexpr std::uint64_t absorb(std::uint64_t hash, std::uint64_t word) { return finalize((hash ^ word) + kGolden); }

// The key of one decision. Words are absorbed one after the other, so (seed, epoch + 1) and (seed + 1, epoch) are unrelated.
constexpr std::uint64_t derive_key(std::uint64_t seed, std::uint64_t epoch, std::uint64_t purpose, std::uint64_t number) {
  return absorb(absorb(absorb(absorb(0, seed), epoch), purpose), number);
}

// Mixes a byte string into a hash: its length, then its bytes as little-endian words, the last one filled up with zeros.
inline std::uint64_t absorb_bytes(std::uint64_t hash, std::span<const std::byte> bytes) {
  hash = absorb(hash, bytes.size());
  std::size_t done = 0;
  for (; done + 8 <= bytes.size(); done += 8) hash = absorb(hash, load_le<std::uint64_t>(bytes.data() + done));
  if (done == bytes.size()) return hash;
  std::byte last[8] = {};
  std::memcpy(last, bytes.data() + done, bytes.size() - done);
  return absorb(hash, load_le<std::uint64_t>(last));
}

}  // namespace penstock
