#include "core/documents.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <stdexcept>

namespace penstock {
namespace {

constexpr std::size_t kBlock = 64;  // tokens that are compared at once

template <class T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

// The first token from `at` on that is `wanted`, or `end`.
template <class T>
std::size_t find_token(const std::byte* tokens, std::size_t at, std::size_t end, T wanted) {
  for (; at + kBlock <= end; at += kBlock) {
    T found = 0;
    for (std::size_t i = 0; i < kBlock; ++i) found |= static_cast<T>(load<T>(tokens + (at + i) * sizeof(T)) == wanted);
    if (found != 0) break;
  }
  while (at < end && load<T>(tokens + at * sizeof(T)) != wanted) ++at;
  return at;
}

// Where the document that begins at `begin` ends, its separator included.
template <class T>
std::size_t document_end(const std::byte* tokens, std::size_t begin, std::size_t length, std::span<const std::byte> separator) {
  const std::size_t width = separator.size() / sizeof(T);
  const auto first = load<T>(separator.data());
  const std::size_t last = length - width + 1;  // a separator begins before this
  for (std::size_t at = begin; (at = find_token<T>(tokens, at, last, first)) < last; ++at) {
    if (std::memcmp(tokens + at * sizeof(T), separator.data(), separator.size()) == 0) return at + width;
  }
  return length;
}

template <class T>
void mark_sequence(const std::byte* tokens, std::size_t length, std::span<const std::byte> separator, std::int32_t* segment,
                   std::int32_t* position) {
  const bool fits = separator.size() / sizeof(T) <= length;
  std::int32_t number = 0;
  for (std::size_t begin = 0, end = 0; begin < length; begin = end, ++number) {
    end = fits && begin + separator.size() / sizeof(T) <= length ? document_end<T>(tokens, begin, length, separator) : length;
    std::fill(segment + begin, segment + end, number);
    std::iota(position + begin, position + end, 0);
  }
}

template <class T>
void mark_all(std::span<const std::byte> tokens, std::size_t length, std::span<const std::byte> separator, std::int32_t* segment,
              std::int32_t* position) {
  const std::size_t bytes = length * sizeof(T);
  for (std::size_t low = 0; low < tokens.size(); low += bytes, segment += length, position += length) {
    mark_sequence<T>(tokens.data() + low, length, separator, segment, position);
  }
}

}  // namespace

void mark_documents(std::span<const std::byte> tokens, std::size_t item, std::size_t length, std::span<const std::byte> separator,
                    std::int32_t* segment, std::int32_t* position) {
  if (length == 0 || separator.empty() || separator.size() % item != 0 || tokens.size() % (length * item) != 0) {
    throw std::invalid_argument("expected whole sequences, and a separator of at least one token");
  }
  switch (item) {
    case 1: return mark_all<std::uint8_t>(tokens, length, separator, segment, position);
    case 2: return mark_all<std::uint16_t>(tokens, length, separator, segment, position);
    case 4: return mark_all<std::uint32_t>(tokens, length, separator, segment, position);
    case 8: return mark_all<std::uint64_t>(tokens, length, separator, segment, position);
    default: throw std::invalid_argument("expected tokens of 1, 2, 4 or 8 bytes");
  }
}

}  // namespace penstock
