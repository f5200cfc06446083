// Memory for batches, used again: fresh memory costs a page fault per 4 KiB, which is as much as filling it.
#pragma once

#include <cstddef>
#include <memory>

namespace penstock {

struct ReturnBuffer {
  std::size_t capacity = 0;
  void operator()(std::byte* data) const noexcept;
};

// Goes back to the pool when it is destroyed, from whatever thread.
using Buffer = std::unique_ptr<std::byte, ReturnBuffer>;

// At least `bytes` bytes at a multiple of 64 (of 4,096 from 32 KiB on), with whatever they held before. Safe to call from several
// threads and after fork. The pool keeps at most kept_buffer_limit() unused bytes.
Buffer take_buffer(std::size_t bytes);

constexpr std::size_t kept_buffer_limit() { return std::size_t{48} << 20; }

// Unused bytes in the pool, for tests and statistics.
std::size_t kept_buffer_bytes();

}  // namespace penstock
