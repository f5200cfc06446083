// Large pages that one landing no longer needs, kept for the next: memory that was used before need not be cleared again.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace penstock {

inline constexpr std::uint64_t kFrameBytes = std::uint64_t{2} << 20;

// A bounded number of frames, moved by their page tables and never copied. Safe to use from several threads, and after fork: a
// slot that another thread was using at that moment is lost to the child, no more.
class SpareFrames {
 public:
  static constexpr std::size_t kSlots = 64;  // 128 MiB

  static SpareFrames& shared();

  // Puts a spare frame at an address, which must be a multiple of kFrameBytes in private memory with nothing there that anybody
  // needs. Its bytes are arbitrary. False if there is none.
  bool take(std::byte* to);
  // Takes the memory of a frame away, after which its address reads as zeros; false if there is no room for it.
  bool give(std::byte* from);

 private:
  SpareFrames();
  bool move(std::byte* from, std::byte* to) const;

  enum State : unsigned char { empty, busy, full };
  std::byte* arena_ = nullptr;  // null: the system does not allow this
  std::atomic<State> states_[kSlots] = {};
};

}  // namespace penstock
