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

// Where the next separator begins, from `begin` on and before `last`; or `last`.
template <class T>
std::size_t find_separator(const std::byte* tokens, std::size_t begin, std::size_t last, std::span<const std::byte> separator) {
  const auto first = load<T>(separator.data());
  std::size_t at = begin;
  for (; (at = find_token<T>(tokens, at, last, first)) < last; ++at) {
    if (std::memcmp(tokens + at * sizeof(T), separator.data(), separator.size()) == 0) break;
  }
  return at;
}

// Where the document that begins at `begin` ends, its separator included.
template <class T>
std::size_t document_end(const std::byte* tokens, std::size_t begin, std::size_t end, std::span<const std::byte> separator) {
  const std::size_t width = separator.size() / sizeof(T);
  const std::size_t last = end - width + 1;  // a separator begins before this
  const std::size_t at = find_separator<T>(tokens, begin, last, separator);
  return at < last ? at + width : end;
}

template <class T>
std::size_t find_ends(std::span<const std::byte> tokens, std::span<const std::byte> separator, std::size_t& from,
                      std::span<std::int64_t> out) {
  const std::size_t width = separator.size() / sizeof(T);
  const std::size_t count = tokens.size() / sizeof(T);
  const std::size_t last = count < width ? 0 : count - width + 1;
  std::size_t found = 0;
  while (from < last) {
    const std::size_t at = find_separator<T>(tokens.data(), from, last, separator);
    from = at;
    if (at == last) break;
    if (found == out.size()) throw std::invalid_argument("expected a place for every separator");
    from += width;
    out[found++] = static_cast<std::int64_t>(from);
  }
  return found;
}

// The documents of neighbouring tokens [begin, end) of a sequence, counted from `number` on; the number behind the last one.
template <class T>
std::int32_t mark_piece(const std::byte* tokens, std::size_t begin, std::size_t end, std::span<const std::byte> separator,
                        std::int32_t number, std::int32_t* segment, std::int32_t* position) {
  const std::size_t width = separator.size() / sizeof(T);
  for (std::size_t stop = 0; begin < end; begin = stop, ++number) {
    stop = width > 0 && begin + width <= end ? document_end<T>(tokens, begin, end, separator) : end;
    std::fill(segment + begin, segment + stop, number);
    std::iota(position + begin, position + stop, 0);
  }
  return number;
}

template <class T>
void mark_all(std::span<const std::byte> tokens, std::size_t length, std::span<const std::byte> separator,
              std::span<const std::int64_t> breaks, std::int32_t* segment, std::int32_t* position) {
  auto next = breaks.begin();
  for (std::size_t low = 0; low < tokens.size() / sizeof(T); low += length) {
    std::int32_t number = 0;
    for (std::size_t begin = low; begin < low + length;) {
      while (next != breaks.end() && static_cast<std::size_t>(*next) <= begin) ++next;
      const std::size_t end = next == breaks.end() ? low + length : std::min(low + length, static_cast<std::size_t>(*next));
      number = mark_piece<T>(tokens.data(), begin, end, separator, number, segment, position);
      begin = end;
    }
  }
}

}  // namespace

std::size_t find_document_ends(std::span<const std::byte> tokens, std::size_t item, std::span<const std::byte> separator,
                               std::size_t& from, std::span<std::int64_t> out) {
  if (item == 0 || separator.empty() || separator.size() % item != 0 || tokens.size() % item != 0) {
    throw std::invalid_argument("expected whole tokens, and a separator of at least one");
  }
  switch (item) {
    case 1: return find_ends<std::uint8_t>(tokens, separator, from, out);
    case 2: return find_ends<std::uint16_t>(tokens, separator, from, out);
    case 4: return find_ends<std::uint32_t>(tokens, separator, from, out);
    case 8: return find_ends<std::uint64_t>(tokens, separator, from, out);
    default: throw std::invalid_argument("expected tokens of 1, 2, 4 or 8 bytes");
  }
}

void mark_documents(std::span<const std::byte> tokens, std::size_t item, std::size_t length, std::span<const std::byte> separator,
                    std::span<const std::int64_t> breaks, std::int32_t* segment, std::int32_t* position) {
  if (length == 0 || item == 0 || separator.size() % item != 0 || tokens.size() % (length * item) != 0) {
    throw std::invalid_argument("expected whole sequences, and a separator of whole tokens");
  }
  if (!std::is_sorted(breaks.begin(), breaks.end()) || (!breaks.empty() && breaks.front() < 0)) {
    throw std::invalid_argument("expected breaks that rise from 0");
  }
  switch (item) {
    case 1: return mark_all<std::uint8_t>(tokens, length, separator, breaks, segment, position);
    case 2: return mark_all<std::uint16_t>(tokens, length, separator, breaks, segment, position);
    case 4: return mark_all<std::uint32_t>(tokens, length, separator, breaks, segment, position);
    case 8: return mark_all<std::uint64_t>(tokens, length, separator, breaks, segment, position);
    default: throw std::invalid_argument("expected tokens of 1, 2, 4 or 8 bytes");
  }
}

}  // namespace penstock
