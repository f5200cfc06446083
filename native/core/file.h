// Read-only files that cannot kill the process: opened without following links, mapped or read by pread, and copied from under a
// guard that turns the SIGBUS of a file cut by somebody else into an exception.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"

namespace penstock {

enum class FileAccess { map, pread };

// Immutable; safe to use from several threads. Whatever was opened stays readable when the name is removed or replaced.
class File {
 public:
  // Opens a regular file of exactly `bytes` bytes; anything else (a link, a directory, a fifo, another size) is refused unopened.
  static std::shared_ptr<const File> open(const std::string& path, std::uint64_t bytes, FileAccess access);
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  const std::string& path() const { return path_; }
  std::uint64_t size() const { return bytes_; }
  // The whole file where it is mapped; null where it is read by pread.
  const std::byte* data() const { return map_; }

  // Whether the file behind the name still has the size it was opened with.
  bool has_its_size() const;

  // Copies bytes [offset, offset + out.size()); throws TruncatedError if the file no longer has them.
  void read(std::uint64_t offset, std::span<std::byte> out) const;

 private:
  File(std::string path, std::uint64_t bytes, int descriptor, const std::byte* map)
      : path_(std::move(path)), bytes_(bytes), descriptor_(descriptor), map_(map) {}

  std::string path_;
  std::uint64_t bytes_;
  int descriptor_;  // -1 once mapped
  const std::byte* map_;
};

// Runs work(context) with a guard: false if it touched a mapped page that is no longer in its file. The work must not own
// anything that needs a destructor, because it is left by a jump.
bool guarded(void (*work)(void*), void* context);

template <class Work>
bool run_guarded(Work& work) {
  return guarded([](void* context) { (*static_cast<Work*>(context))(); }, &work);
}

}  // namespace penstock
