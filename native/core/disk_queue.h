// Many reads of files at once: by io_uring where the system has it, or by threads that wait in pread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "core/fork_local.h"

namespace penstock {

// Bytes [offset, offset + bytes) of an open file, which go to `to`. Afterwards: how many there were up to the end of the file, or
// up to the error.
struct DiskRead {
  int descriptor;
  std::uint64_t offset;
  std::byte* to;
  std::uint64_t bytes;
  std::uint64_t unit = 1;  // what offsets must be multiples of: where another number of bytes is found the file ends
  std::uint64_t got = 0;
  int error = 0;  // errno
};

enum class DiskWay { any, threads };

// Safe to use from several threads: each gets a ring of its own, up to the number of threads that ever read at once. In a forked
// child the first read makes new ones.
class DiskQueue {
 public:
  static constexpr unsigned kDepth = 128;  // reads under way in a ring
  static constexpr unsigned kThreads = 32;

  // The queue of this process, which is gone when its last user is: rings hold descriptors.
  static std::shared_ptr<DiskQueue> shared();

  explicit DiskQueue(DiskWay way = DiskWay::any);
  ~DiskQueue();
  DiskQueue(const DiskQueue&) = delete;
  DiskQueue& operator=(const DiskQueue&) = delete;

  // Does all reads, and returns when the last one is done. Interrupted and short ones go on. Memory and offsets must be aligned
  // as the descriptors want it.
  void read(std::span<DiskRead> reads);
  // Whether they go through io_uring, which is found out by trying.
  bool has_ring();

 private:
  class Ring;
  class Crew;
  struct State;

  DiskWay way_;
  ForkLocal<State> state_;
};

}  // namespace penstock
