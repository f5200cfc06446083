#include "core/read_ahead.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <list>

namespace penstock {
namespace {

constexpr std::uint64_t kPieceBytes = 512 << 10;  // of one read
constexpr std::uint64_t kAtOnce = 4 << 20;        // of a thread
constexpr std::size_t kThreads = 2;               // one reads while the other tells that it has
constexpr std::size_t kOpenFiles = 16;

struct Registry {
  std::mutex mutex;
  std::map<std::array<std::uint64_t, 4>, std::weak_ptr<AheadFile>> files;
};

Registry& registry() {
  static auto* const own = new ForkLocal<Registry>;  // threads may outlive what is destroyed at the end of a process
  return own->get();
}

// When anything about a file was changed last, which nobody can set; 0 if that is not known.
std::uint64_t changed_ns_of(int descriptor) {
  struct stat info = {};
  if (fstat(descriptor, &info) != 0) return 0;
#ifdef __APPLE__
  const timespec& time = info.st_ctimespec;
#else
  const timespec& time = info.st_ctim;
#endif
  return static_cast<std::uint64_t>(std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec);
}

}  // namespace

std::uint64_t direct_memory_unit(std::uint64_t alignment) {
  static const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  return std::max(alignment, page);
}

std::shared_ptr<AheadFile> AheadFile::of(const FileVersion& version, int descriptor) {
  const std::uint64_t changed_ns = changed_ns_of(descriptor);
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  std::weak_ptr<AheadFile>& known = all.files[{version.device, version.inode, version.written_ns, changed_ns}];
  std::shared_ptr<AheadFile> found = known.lock();
  if (found == nullptr) {
    known = found = std::make_shared<AheadFile>();
    if (all.files.size() % 1024 == 0) std::erase_if(all.files, [](const auto& one) { return one.second.expired(); });
  }
  return found;
}

std::shared_ptr<const AheadFile::Extent> AheadFile::find(std::uint64_t offset, std::uint64_t bytes) const {
  std::shared_ptr<Extent> found;
  {
    const std::lock_guard lock(mutex_);
    auto after = extents_.upper_bound(offset);
    if (after == extents_.begin()) return nullptr;
    found = std::prev(after)->second;
  }
  if (!found->holds(offset, bytes)) return nullptr;
  for (State state = found->state.load(); state == State::pending; state = found->state.load()) found->state.wait(state);
  return found->state.load() == State::ready ? found : nullptr;
}

void AheadFile::use(const Extent& extent, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = extents_.find(extent.start);
  if (found == extents_.end() || found->second.get() != &extent) return;
  found->second->left -= static_cast<std::int64_t>(bytes);
  if (found->second->left > 0) return;
  extents_.erase(found);
  count_.store(extents_.size(), std::memory_order_release);
}

std::shared_ptr<AheadFile::Extent> AheadFile::add(std::uint64_t start, std::uint64_t stop) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Extent>& place = extents_[start];
  if (place != nullptr && place->stop == stop) {
    place->left += static_cast<std::int64_t>(stop - start);
    return nullptr;
  }
  place = std::make_shared<Extent>();
  place->start = start;
  place->stop = stop;
  place->left = static_cast<std::int64_t>(stop - start);
  count_.store(extents_.size(), std::memory_order_release);
  return place;
}

void AheadFile::drop(const Extent& extent) {
  const std::lock_guard lock(mutex_);
  const auto found = extents_.find(extent.start);
  if (found == extents_.end() || found->second.get() != &extent) return;
  extents_.erase(found);
  count_.store(extents_.size(), std::memory_order_release);
}

struct ReadAhead::Crew {
  using Extent = AheadFile::Extent;

  struct Job {
    std::shared_ptr<const DirectFile> file;
    std::shared_ptr<AheadFile> ahead;
    std::shared_ptr<Extent> extent;
  };
  struct Plan {
    std::int64_t step;
    std::string path;
    std::uint64_t start;
    std::uint64_t stop;
  };
  struct Fetched {
    std::shared_ptr<AheadFile> ahead;
    std::weak_ptr<Extent> extent;
    std::uint64_t bytes;
  };

  explicit Crew(std::uint64_t most) : most_bytes(most) {
    try {
      for (std::size_t i = 0; i < kThreads; ++i) threads.emplace_back([this] { serve(); });
    } catch (const std::system_error&) {
      if (threads.empty()) is_closing = true;  // nothing is read ahead
    }
  }

  void serve() {
    std::vector<Job> mine;
    std::unique_lock lock(mutex);
    while (true) {
      work.wait(lock, [&] { return is_closing || !jobs.empty(); });
      if (is_closing) return;
      for (std::uint64_t bytes = 0; bytes < kAtOnce && !jobs.empty();) {
        bytes += jobs.front().extent->stop - jobs.front().extent->start;
        mine.push_back(std::move(jobs.front()));
        jobs.pop_front();
      }
      ++num_reading;
      lock.unlock();
      try {
        read(mine);
      } catch (const std::bad_alloc&) {  // those who wait read for themselves
        for (const Job& job : mine) finish(job, AheadFile::State::failed);
      }
      mine.clear();
      lock.lock();
      --num_reading;
      if (jobs.empty() && num_reading == 0) idle.notify_all();
    }
  }

  static void finish(const Job& job, AheadFile::State state) {
    if (state == AheadFile::State::failed) job.ahead->drop(*job.extent);
    job.extent->state.store(state);
    job.extent->state.notify_all();
  }

  void read(std::vector<Job>& mine) const {
    std::vector<DiskRead> reads;
    std::vector<std::size_t> ends;
    for (Job& job : mine) {
      const std::uint64_t unit = job.file->alignment;
      const std::uint64_t low = job.extent->start / unit * unit;
      const std::uint64_t high = (job.extent->stop + unit - 1) / unit * unit;
      try {
        job.extent->memory = take_disk_memory(high - low);
      } catch (const std::bad_alloc&) {
        ends.push_back(reads.size());
        continue;
      }
      std::byte* const to = job.extent->memory.get();
      job.extent->data = to + (job.extent->start - low);
      for (std::uint64_t at = low; at < high; at += kPieceBytes) {
        reads.push_back({job.file->descriptor, at, to + (at - low), std::min(kPieceBytes, high - at), unit});
      }
      ends.push_back(reads.size());
    }
    queue->read(reads);
    for (std::size_t i = 0, next = 0; i < mine.size(); ++i) {
      const Extent& extent = *mine[i].extent;
      bool is_good = next < ends[i];
      for (; next < ends[i]; ++next) {
        const DiskRead& one = reads[next];
        is_good &= one.error == 0 && one.offset + one.got >= std::min(extent.stop, one.offset + one.bytes);
      }
      finish(mine[i], is_good ? AheadFile::State::ready : AheadFile::State::failed);
    }
  }

  // Drops the oldest until no more bytes are held than allowed; with the lock held.
  void make_room() {
    std::erase_if(fetched, [&](const Fetched& one) {
      if (!one.extent.expired()) return false;
      held -= one.bytes;
      return true;
    });
    while (held > most_bytes && !fetched.empty()) drop_oldest();
  }

  void drop_oldest() {
    const Fetched one = std::move(fetched.front());
    fetched.pop_front();
    held -= one.bytes;
    if (const std::shared_ptr<Extent> extent = one.extent.lock()) one.ahead->drop(*extent);
  }

  std::shared_ptr<const DirectFile> open(const std::string& path) {
    const auto known = std::find_if(files.begin(), files.end(), [&](const auto& one) { return one->path == path; });
    if (known != files.end()) {
      files.splice(files.begin(), files, known);
      return files.front();
    }
    std::shared_ptr<const DirectFile> found = DirectFile::open(path);
    if (found == nullptr) return nullptr;
    files.push_front(found);
    if (files.size() > kOpenFiles) files.pop_back();
    return found;
  }

  // Those whose step has come; with the lock of plans held.
  void begin_due() {
    for (; !planned.empty() && planned.front().step <= last_passed; planned.pop_front()) begin(planned.front());
  }

  void begin(const Plan& plan) {
    const std::shared_ptr<const DirectFile> file = open(plan.path);
    if (file == nullptr || plan.stop > file->bytes) return;
    std::shared_ptr<AheadFile> ahead = AheadFile::of(file->version, file->descriptor);
    {
      const std::lock_guard lock(mutex);
      if (is_closing) return;
      std::shared_ptr<Extent> extent = ahead->add(plan.start, plan.stop);
      if (extent == nullptr) return;
      held += plan.stop - plan.start;
      fetched.push_back({ahead, extent, plan.stop - plan.start});
      jobs.push_back({file, std::move(ahead), std::move(extent)});
      make_room();
    }
    work.notify_one();
  }

  std::uint64_t most_bytes;
  std::shared_ptr<DiskQueue> queue = DiskQueue::shared();
  std::mutex planning;
  std::deque<Plan> planned;  // with that lock held, as the next two
  std::int64_t last_passed = kNow;
  std::list<std::shared_ptr<const DirectFile>> files;  // the last used first
  std::mutex mutex;                                    // of all that follows
  std::condition_variable work;
  std::condition_variable idle;
  std::deque<Job> jobs;
  std::deque<Fetched> fetched;
  std::uint64_t held = 0;
  std::size_t num_reading = 0;
  bool is_closing = false;
  std::vector<std::thread> threads;
};

ReadAhead::ReadAhead(std::uint64_t most_bytes) : crew_(std::make_unique<Crew>(most_bytes)) {}

ReadAhead::~ReadAhead() {
  if (forks_ != fork_count()) {
    (void)crew_.release();  // of the parent's threads and locks
    return;
  }
  close();
}

void ReadAhead::fetch(const std::string& path, std::uint64_t start, std::uint64_t stop, std::int64_t step) {
  if (forks_ != fork_count() || stop <= start) return;
  const std::lock_guard turn(crew_->planning);
  crew_->planned.push_back({step, path, start, stop});
  crew_->begin_due();
}

void ReadAhead::passed(std::int64_t step) {
  if (forks_ != fork_count()) return;
  const std::lock_guard turn(crew_->planning);
  crew_->last_passed = std::max(crew_->last_passed, step);
  crew_->begin_due();
}

void ReadAhead::wait() {
  if (forks_ != fork_count()) return;
  std::unique_lock lock(crew_->mutex);
  crew_->idle.wait(lock, [&] { return crew_->is_closing || (crew_->jobs.empty() && crew_->num_reading == 0); });
}

std::uint64_t ReadAhead::size() const {
  if (forks_ != fork_count()) return 0;
  const std::lock_guard lock(crew_->mutex);
  crew_->make_room();
  return crew_->held;
}

void ReadAhead::close() {
  if (forks_ != fork_count()) return;
  std::vector<std::thread> threads;
  std::deque<Crew::Job> left;
  {
    const std::lock_guard lock(crew_->mutex);
    crew_->is_closing = true;
    threads.swap(crew_->threads);
    left.swap(crew_->jobs);
    while (!crew_->fetched.empty()) crew_->drop_oldest();
  }
  for (const Crew::Job& job : left) {  // a reader may wait for it
    job.extent->state.store(AheadFile::State::failed);
    job.extent->state.notify_all();
  }
  crew_->work.notify_all();
  crew_->idle.notify_all();
  for (std::thread& thread : threads) thread.join();
}

}  // namespace penstock
