// A batch cut into pieces for several threads.
#pragma once

#include <sys/resource.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/file.h"
#include "core/thread_pool.h"

namespace penstock {

constexpr std::uint64_t kPieceBytes = 32 << 10;  // less work than this is not worth a piece of its own

// Calls piece(low, high) for stretches that cover [0, count).
template <class Piece>
void in_pieces(std::size_t count, std::uint64_t bytes_each, ThreadPool& pool, const Piece& piece) {
  const auto total = static_cast<unsigned __int128>(count) * std::max<std::uint64_t>(bytes_each, 64);
  const auto most = static_cast<std::size_t>(std::min<unsigned __int128>(total / kPieceBytes + 1, 8 * pool.size()));
  const std::size_t pieces = std::min(count, most);
  if (pieces <= 1 || pool.size() == 1) {
    if (count > 0) piece(std::size_t{0}, count);
    return;
  }
  const auto edge = [=](std::size_t i) { return static_cast<std::size_t>(static_cast<unsigned __int128>(count) * i / pieces); };
  pool.for_each(pieces, [&](std::size_t i) { piece(edge(i), edge(i + 1)); });
}

constexpr std::uint64_t kOpenFiles = 12'288;  // mapped at once, with two maps each; the system allows 65,530 maps

// How many files may be open at once. A file that is not mapped holds a descriptor, of which others want some too.
inline std::uint64_t open_file_limit(FileAccess access, std::uint64_t most) {
  if (access == FileAccess::map) return most;
  rlimit files = {};
  getrlimit(RLIMIT_NOFILE, &files);
  return std::clamp<std::uint64_t>(files.rlim_cur / 4, 8, std::max<std::uint64_t>(most, 8));
}

// Calls slice(low, count) for stretches of a batch over `files` files, small enough that a few threads at once do not need many
// more than `limit` of them.
template <class Slice>
void in_slices(std::size_t count, std::uint64_t files, std::uint64_t limit, const Slice& slice) {
  const std::size_t most = files <= limit ? std::max<std::size_t>(1, count) : std::max<std::size_t>(1, limit / 8);
  for (std::size_t low = 0; low < count; low += most) slice(low, std::min(most, count - low));
}

}  // namespace penstock
