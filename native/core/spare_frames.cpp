#include "core/spare_frames.h"

#include <sys/mman.h>

#include "core/pages.h"

namespace penstock {

SpareFrames& SpareFrames::shared() {
  static SpareFrames* const frames = new SpareFrames();  // never destroyed: landings may outlive everything else
  return *frames;
}

SpareFrames::SpareFrames() {
  const std::size_t bytes = (kSlots + 1) * kFrameBytes;
  void* const made = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (made == MAP_FAILED) return;
  const auto base = reinterpret_cast<std::uintptr_t>(made);
  auto* const first = reinterpret_cast<std::byte*>((base + kFrameBytes - 1) / kFrameBytes * kFrameBytes);
  // One try shows whether the system can do it: qemu 7.2 moves the memory, but counts the addresses it came from as free. The
  // address space stays where it fails: it costs nothing, and a part of it may belong to others by then.
  unsigned char flag = 0;
  if (move_pages_to(first, kFrameBytes, first + kFrameBytes) && look_for_pages(first, 1, &flag)) arena_ = first;
}

bool SpareFrames::move(std::byte* from, std::byte* to) const {
  if (move_pages_to(from, kFrameBytes, to)) return true;
  // What was at the target may be gone already: the hole must not stay, or others get its addresses.
  mmap(to, kFrameBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  return false;
}

bool SpareFrames::take(std::byte* to) {
  if (arena_ == nullptr) return false;
  for (std::size_t slot = 0; slot < kSlots; ++slot) {
    State state = full;
    if (!states_[slot].compare_exchange_strong(state, busy)) continue;
    const bool moved = move(arena_ + slot * kFrameBytes, to);
    states_[slot].store(moved ? empty : full);
    return moved;
  }
  return false;
}

bool SpareFrames::give(std::byte* from) {
  if (arena_ == nullptr) return false;
  for (std::size_t slot = 0; slot < kSlots; ++slot) {
    State state = empty;
    if (!states_[slot].compare_exchange_strong(state, busy)) continue;
    const bool moved = move(from, arena_ + slot * kFrameBytes);
    states_[slot].store(moved ? full : empty);
    return moved;
  }
  return false;
}

}  // namespace penstock
