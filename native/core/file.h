// Read-only files that cannot kill the process: opened without following links, mapped or read by pread, and copied from under a
// guard that turns the SIGBUS of a file cut by somebody else into an exception. Or objects in a landing, read like mapped files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/landing.h"

namespace penstock {

enum class FileAccess { map, pread };

// Whether the directory of a file may be a link: that of a store's own files may not, for it could lead to another store.
enum class Above { any, no_link };

// Immutable; safe to use from several threads. Whatever was opened stays readable when the name is removed or replaced.
class File {
 public:
  // Opens a regular file of exactly `bytes` bytes; anything else (a link, a directory, a fifo, another size) is refused unopened.
  static std::shared_ptr<const File> open(const std::string& path, std::uint64_t bytes, FileAccess access,
                                          Above above = Above::any);
  // The object of a landing, which must have exactly `bytes` bytes. What is read must be in memory, and the landing is not to be
  // dropped before this is gone.
  static std::shared_ptr<const File> open(const std::string& name, std::uint64_t bytes, std::shared_ptr<const Landing> landing);
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  const std::string& path() const { return path_; }
  std::uint64_t size() const { return bytes_; }
  // The whole file where it is mapped or landed; null where it is read by pread.
  const std::byte* data() const { return map_; }
  bool is_landed() const { return landing_ != nullptr; }

  // Whether the file behind the name still has the size it was opened with; an object in a landing always has.
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
  std::shared_ptr<const Landing> landing_;  // whose memory the map is, if it is one's
};

// Runs work(context) with a guard: false if it touched a mapped page that is no longer in its file. The work must not own
// anything that needs a destructor, because it is left by a jump.
bool guarded(void (*work)(void*), void* context);

template <class Work>
bool run_guarded(Work& work) {
  return guarded([](void* context) { (*static_cast<Work*>(context))(); }, &work);
}

}  // namespace penstock
