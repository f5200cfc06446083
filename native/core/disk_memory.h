// Memory that disks write into: huge pages, used again and again. Into pages of 4 KiB a disk writes half as fast or less: each is
// a segment of its own, to be faulted in, pinned and told to the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/fork_local.h"

namespace penstock {

struct ReturnDiskMemory {
  std::size_t bytes = 0;
  std::uint32_t forks = fork_count();
  void operator()(std::byte* data) const noexcept;
};

// Goes back when it is destroyed, from whatever thread.
using DiskMemory = std::unique_ptr<std::byte, ReturnDiskMemory>;

// At least `bytes` bytes at a multiple of 64 KiB, with whatever they held before. Safe to call from several threads and after
// fork. A forked child does not have what its parent took, not even to read: a page that both had would be copied when one wrote
// to it, and the disk may be writing into it then.
DiskMemory take_disk_memory(std::size_t bytes);

// What the system has lent for it, used or not.
std::size_t disk_memory_bytes();
// Of which no more than this is unused, when all was given back.
constexpr std::size_t kept_disk_memory() { return std::size_t{32} << 20; }

}  // namespace penstock
