// Memory for batches, used again: fresh memory costs a page fault per 4 KiB, which is as much as filling it.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <type_traits>

namespace penstock {

struct ReturnBuffer {
  std::size_t capacity = 0;
  void operator()(std::byte* data) const noexcept;
};

// Goes back to the pool when it is destroyed, from whatever thread.
using Buffer = std::unique_ptr<std::byte, ReturnBuffer>;

// At least `bytes` bytes at a multiple of 64 (of 4,096 from 32 KiB on), with whatever they held before. Safe to call from several
// threads and after fork. The pool keeps at most kept_buffer_limit() unused bytes, or as many as are in use if that is more.
Buffer take_buffer(std::size_t bytes);

// An array in such memory: its elements are arbitrary until they are written.
template <class T>
class PooledArray {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);

 public:
  PooledArray() = default;
  explicit PooledArray(std::size_t size) : buffer_(take_buffer(size * sizeof(T))), size_(size) {}
  PooledArray(std::size_t size, const T& value) : PooledArray(size) {
    for (T& element : *this) element = value;
  }

  std::size_t size() const { return size_; }
  T* data() const { return reinterpret_cast<T*>(buffer_.get()); }
  T* begin() const { return data(); }
  T* end() const { return data() + size_; }
  T& operator[](std::size_t i) const { return data()[i]; }
  operator std::span<T>() const { return {data(), size_}; }

 private:
  Buffer buffer_;
  std::size_t size_ = 0;
};

constexpr std::size_t kept_buffer_limit() { return std::size_t{48} << 20; }

// Unused bytes in the pool, for tests and statistics.
std::size_t kept_buffer_bytes();

}  // namespace penstock
