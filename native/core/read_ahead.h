// Extents of files that are read directly, brought into memory before they are needed, and dropped when they were used.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "core/disk_memory.h"
#include "core/disk_queue.h"
#include "core/file.h"
#include "core/fork_local.h"

namespace penstock {

// What of one version of a file is in memory, or on its way. Safe to use from several threads.
class AheadFile {
 public:
  enum class State : int { pending, ready, failed };
  struct Extent {
    std::uint64_t start;  // in the file
    std::uint64_t stop;
    std::int64_t left;  // bytes that are still to be used, as far as known; with the lock of the file held
    DiskMemory memory = {};
    const std::byte* data = nullptr;  // of `start`
    std::atomic<State> state{State::pending};

    bool holds(std::uint64_t offset, std::uint64_t bytes) const { return offset >= start && offset + bytes <= stop; }
  };

  // That of a version of an open file, the same for all who ask in this process. A file that was written to and got its old time
  // back is another one.
  static std::shared_ptr<AheadFile> of(const FileVersion& version, int descriptor);

  // A forked child has none of them.
  bool is_empty() const { return count_.load(std::memory_order_acquire) == 0 || forks_ != fork_count(); }
  // The extent that holds these bytes, after a wait if they are on their way; null if there is none.
  std::shared_ptr<const Extent> find(std::uint64_t offset, std::uint64_t bytes) const;
  // Bytes of an extent were used. When all were it is dropped, and its memory is gone with its last user.
  void use(const Extent& extent, std::uint64_t bytes);

  // A new extent that is pending; null if there is one with that start already, which is then to be used once more.
  std::shared_ptr<Extent> add(std::uint64_t start, std::uint64_t stop);
  void drop(const Extent& extent);

 private:
  mutable std::mutex mutex_;
  std::map<std::uint64_t, std::shared_ptr<Extent>> extents_;  // by their starts
  std::atomic<std::size_t> count_{0};
  const std::uint32_t forks_ = fork_count();
  std::shared_ptr<DiskQueue> queue_ = DiskQueue::shared();  // rings stay as long as any file is open that is read directly
};

// What memory of direct reads begins and ends at, for files of an alignment: whole pages, so that no two reads share one. Where a
// process is forked while the disk writes into a page, and then something else is written into it, older systems give this
// process a copy that misses what the disk wrote.
std::uint64_t direct_memory_unit(std::uint64_t alignment);

// Threads that read extents, in the order in which they were asked for, each when its step has come: so that they can be asked
// for long before. Extents that were not used are dropped, the oldest first, when there are more bytes than allowed. Safe to use
// from several threads. In a forked child it does nothing.
class ReadAhead {
 public:
  explicit ReadAhead(std::uint64_t most_bytes);
  ~ReadAhead();
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  static constexpr std::int64_t kNow = INT64_MIN;

  // Reads bytes [start, stop) of a file as soon as steps up to `step` have passed; in order of steps. What cannot be read is left
  // to those who need it, and who tell.
  void fetch(const std::string& path, std::uint64_t start, std::uint64_t stop, std::int64_t step = kNow);
  void passed(std::int64_t step);
  // Waits until all is there of which the step has come.
  void wait();
  // Bytes in memory or on their way.
  std::uint64_t size() const;
  // Ends the threads and drops everything. Idempotent.
  void close();

 private:
  struct Crew;

  std::uint32_t forks_ = fork_count();
  std::unique_ptr<Crew> crew_;
};

}  // namespace penstock
