// Arrays whose memory comes from the pool of buffers, and goes back there when they are gone.
#pragma once

#include <array>

#include "bind/array.h"
#include "core/buffer_pool.h"

namespace penstock::bind {

template <class T, std::size_t kDimensions = 1>
using OwnArray = nb::ndarray<nb::numpy, T, nb::ndim<kDimensions>>;

// An array at the beginning of the buffer.
template <class T, std::size_t kDimensions>
OwnArray<T, kDimensions> as_array(Buffer buffer, const std::array<std::size_t, kDimensions>& shape) {
  T* const data = reinterpret_cast<T*>(buffer.get());
  const nb::capsule owner(new Buffer(std::move(buffer)), [](void* p) noexcept { delete static_cast<Buffer*>(p); });
  return OwnArray<T, kDimensions>(data, kDimensions, shape.data(), owner);
}

template <class T>
OwnArray<T> as_array(Buffer buffer, std::size_t count) {
  return as_array<T, 1>(std::move(buffer), {count});
}

}  // namespace penstock::bind
