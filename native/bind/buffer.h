// Arrays whose memory comes from the pool of buffers, and goes back there when they are gone.
#pragma once

#include "bind/array.h"
#include "core/buffer_pool.h"

namespace penstock::bind {

template <class T>
using OwnArray = nb::ndarray<nb::numpy, T, nb::ndim<1>>;

// An array of `count` elements at the beginning of the buffer.
template <class T>
OwnArray<T> as_array(Buffer buffer, std::size_t count) {
  T* const data = reinterpret_cast<T*>(buffer.get());
  const nb::capsule owner(new Buffer(std::move(buffer)), [](void* p) noexcept { delete static_cast<Buffer*>(p); });
  return {data, {count}, owner};
}

}  // namespace penstock::bind
