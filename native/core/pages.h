// Calls about pages of anonymous private memory that systems have in different forms, or not at all.
#pragma once

#include <sys/mman.h>

#include <cstddef>

namespace penstock {

// Advice only: a failure changes nothing.
inline void prefer_huge_pages([[maybe_unused]] void* start, [[maybe_unused]] std::size_t bytes) {
#ifdef MADV_HUGEPAGE
  madvise(start, bytes, MADV_HUGEPAGE);
#endif
}

inline void prefer_small_pages([[maybe_unused]] void* start, [[maybe_unused]] std::size_t bytes) {
#ifdef MADV_NOHUGEPAGE
  madvise(start, bytes, MADV_NOHUGEPAGE);
#endif
}

// Not even to read. Advice only.
inline void keep_from_children([[maybe_unused]] void* start, [[maybe_unused]] std::size_t bytes) {
#ifdef MADV_DONTFORK
  madvise(start, bytes, MADV_DONTFORK);
#endif
}

// Gives memory back to the system; it reads as zeros afterwards. False with errno where that failed.
inline bool discard_pages(void* start, std::size_t bytes) {
#ifdef __linux__
  return madvise(start, bytes, MADV_DONTNEED) == 0;
#else  // elsewhere the advice may keep the bytes
  return mmap(start, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED;
#endif
}

// Which pages of a range are in memory: a flag each, whose lowest bit says so. False with errno where that failed.
inline bool look_for_pages(void* start, std::size_t bytes, unsigned char* flags) {
#ifdef __linux__
  return mincore(start, bytes, flags) == 0;
#else
  return mincore(start, bytes, reinterpret_cast<char*>(flags)) == 0;
#endif
}

// Moves memory to other addresses by its page tables; its own read as zeros afterwards. False where the system cannot do that.
inline bool move_pages_to([[maybe_unused]] void* from, [[maybe_unused]] std::size_t bytes, [[maybe_unused]] void* to) {
#ifdef MREMAP_DONTUNMAP
  return mremap(from, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, to) == to;
#else
  return false;
#endif
}

}  // namespace penstock
