// Array arguments: one-dimensional, contiguous, on the CPU; outputs are filled in place and never converted.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>

namespace penstock::bind {

namespace nb = nanobind;

template <class T>
using Array = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ints = Array<const std::int64_t>;
using IntsOut = Array<std::int64_t>;

template <class T>
std::span<T> span(const Array<T>& array) {
  return {array.data(), array.size()};
}

inline void need_same_length(std::size_t in, std::size_t out) {
  if (in != out) {
    throw std::invalid_argument("expected input and output of one length, got " + std::to_string(in) + " and " +
                                std::to_string(out));
  }
}

// Raises IndexError unless every value is in [0, n).
inline void need_below(std::span<const std::int64_t> values, std::uint64_t n) {
  for (const std::int64_t value : values) {
    if (static_cast<std::uint64_t>(value) >= n) {
      throw nb::index_error(("expected values in [0, " + std::to_string(n) + "), got " + std::to_string(value)).c_str());
    }
  }
}

// Raises IndexError unless start, start + step, ... (count of them) are in [0, n).
inline void need_run_below(std::uint64_t start, std::uint64_t step, std::size_t count, std::uint64_t n) {
  if (step == 0) throw std::invalid_argument("expected a step of at least 1, got 0");
  if (count == 0) return;
  const auto last = static_cast<unsigned __int128>(start) + static_cast<unsigned __int128>(step) * (count - 1);
  if (last >= n) {
    throw nb::index_error(("expected positions in [0, " + std::to_string(n) + "), got a run of " + std::to_string(count) +
                           " from " + std::to_string(start) + " by " + std::to_string(step))
                              .c_str());
  }
}

}  // namespace penstock::bind
