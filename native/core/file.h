// Read-only files that cannot kill the process: opened without following links, mapped, read by pread or read past the page
// cache, and copied from under a guard that turns the SIGBUS of a file that was cut, or of a disk that failed, into an exception.
// Or objects in a landing, read like mapped files.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/disk_memory.h"
#include "core/disk_queue.h"
#include "core/error.h"
#include "core/landing.h"

namespace penstock {

// direct: by the disk into memory of ours, past the page cache. Files of all kinds but map hold a descriptor.
enum class FileAccess { map, pread, direct };

class AheadFile;

// Which file a name stood for, and when it was written last. All zero: not known.
struct FileVersion {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::uint64_t written_ns = 0;
  bool is_known() const { return inode != 0; }
  friend bool operator==(const FileVersion&, const FileVersion&) = default;
};

// Whether the directory of a file may be a link: that of a store's own files may not, for it could lead to another store.
enum class Above { any, no_link };

// Immutable; safe to use from several threads. Whatever was opened stays readable when the name is removed or replaced, and when
// another program appends to the file.
//
// A map has no pages behind the end of its file, but the rest of the last page reads as zeros, so that a cut within it would not
// be noticed. Therefore the last page is a private copy, made when the file is opened. The system takes such a page away as soon
// as the file is cut before it, and what comes in its place when the file grows again does not have the mark that was put behind
// the last byte of the copy: is_whole() sees every cut that can have changed bytes before the last page, with one load.
class File {
 public:
  // Opens a regular file of exactly `bytes` bytes; anything else (a link, a directory, a fifo, another size) is refused unopened.
  // A version that is known must still be the one that the name stands for.
  static std::shared_ptr<const File> open(const std::string& path, std::uint64_t bytes, FileAccess access,
                                          const FileVersion& version = {}, Above above = Above::any);
  // The object of a landing, which must have exactly `bytes` bytes. What is read must be in memory, and the landing is not to be
  // dropped before this is gone.
  static std::shared_ptr<const File> open(const std::string& name, std::uint64_t bytes, std::shared_ptr<const Landing> landing);
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  const std::string& path() const { return path_; }
  std::uint64_t size() const { return bytes_; }
  // The whole file where it is mapped or landed; null where it is read by calls.
  const std::byte* data() const { return map_; }
  bool is_direct() const { return alignment_ != 0; }
  bool is_landed() const { return landing_ != nullptr; }
  bool contains(const std::byte* address) const { return address >= map_ && address < map_ + bytes_; }

  // The word that is_whole() looks at; null where the file is not mapped. It is kFileMark where there is room behind the last
  // byte.
  const std::byte* sentinel() const { return sentinel_; }
  // False if a mapped file was cut since it was opened, be it for a moment; to be asked under guard, after copying.
  bool is_whole() const { return sentinel_ == nullptr || *reinterpret_cast<const volatile std::uint64_t*>(sentinel_) == mark_; }
  // Says why a guarded copy failed: at the address of the fault, or null if the file was not whole or the address is not known.
  [[noreturn]] void fail(const std::byte* fault) const;
  // Throws ChangedError if the file was written to in place since it was opened; a file that only grew was appended to. Costs a
  // call of the system. A mapped file whose name is gone cannot be asked. That a file was cut is found by reads, except where
  // they are direct: bytes may have been read ahead.
  void need_unwritten() const;

  // Copies bytes [offset, offset + out.size()); throws TruncatedError if the file no longer has them.
  void read(std::uint64_t offset, std::span<std::byte> out) const;

 private:
  File(std::string path, std::uint64_t bytes, const FileVersion& version)
      : path_(std::move(path)), bytes_(bytes), version_(version) {}
  void map(int descriptor);
  void read_past_cache();
  [[noreturn]] void fail_short(std::uint64_t found) const;

  friend class Stage;

  std::string path_;
  std::uint64_t bytes_;
  FileVersion version_;
  int descriptor_ = -1;          // of a file that is not mapped
  std::uint64_t alignment_ = 0;  // of direct reads: offsets, sizes and memory
  const std::byte* map_ = nullptr;
  const std::byte* sentinel_ = nullptr;
  std::uint64_t mark_ = 0;
  std::shared_ptr<const Landing> landing_;  // whose memory the map is, if it is one's
  std::shared_ptr<AheadFile> ahead_;        // what of a file that is read directly is in memory
};

// A file that is open for direct reads, whatever its size.
struct DirectFile {
  // Null where that fails, for whatever reason: nothing depends on it.
  static std::shared_ptr<const DirectFile> open(const std::string& path);
  DirectFile() = default;
  ~DirectFile();
  DirectFile(const DirectFile&) = delete;
  DirectFile& operator=(const DirectFile&) = delete;

  std::string path;
  int descriptor = -1;
  std::uint64_t bytes = 0;
  std::uint64_t alignment = 0;
  FileVersion version;
};

// Brings bytes of files that are read directly into memory, as many at a time as keep a disk busy. For one thread at a time.
class Stage {
 public:
  static constexpr std::uint64_t kBytes = 4 << 20;  // what callers had better want at a time
  static constexpr std::size_t kWants = 256;

  struct Want {
    const File* file;
    std::uint64_t offset;
    std::uint64_t bytes;
    std::uint64_t used = bytes;     // of these; the others are asked for again, or were before
    const std::byte* at = nullptr;  // where they are, until the next call
  };

  Stage();
  ~Stage();
  // Throws what File::read would, for the first that fails.
  void bring(std::span<Want> wants);
  // Throws if one of the files of the last call was written to, or cut, since it was opened: a call of the system for each.
  void need_unwritten() const;

 private:
  struct Extent;
  struct Held;

  bool find_ahead(Want& want);

  std::shared_ptr<DiskQueue> queue_;
  std::vector<Held> held_;          // read ahead
  std::vector<const File*> files_;  // each once
  std::vector<Extent> extents_;
  std::vector<DiskRead> reads_;
  DiskMemory buffer_;
};

// Reads bytes [offset, offset + out.size()) of a file that was listed before with that size and version (which may not be known),
// and leaves nothing open. Throws ChangedError if the name stands for anything else by now, or if the file was written to while
// it was read; a name that is gone is a SystemError.
void read_listed(const std::string& path, std::uint64_t bytes, const FileVersion& version, std::uint64_t offset,
                 std::span<std::byte> out);

inline constexpr std::array<char, 8> kFileMark{'K', 'N', 'U', 'H', 'C', 'N', 'E', 'P'};

// What became of guarded work: whether it touched a page that could not be had, and the address, null if that is not known.
struct Fault {
  bool happened = false;
  const std::byte* at = nullptr;
};

// Runs work(context) with a guard. The work must not own anything that needs a destructor, because it is left by a jump.
Fault guarded(void (*work)(void*), void* context);

template <class Work>
Fault run_guarded(Work& work) {
  return guarded([](void* context) { (*static_cast<Work*>(context))(); }, &work);
}

// Says why memory of the caller's, which may be a map of a file, could not be read.
[[noreturn]] void fail_in_memory(const std::byte* fault);

// Puts the guard in place again if another library (Python's faulthandler) has replaced it. For the price of a look at the clock,
// but for once in 10 ms; to be called before every read.
void keep_guard();

// True once in 10 ms, for one thread.
class Interval {
 public:
  bool is_due();

 private:
  std::atomic<std::int64_t> next_ns_{0};
};

}  // namespace penstock
