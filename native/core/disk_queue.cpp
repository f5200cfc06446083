#include "core/disk_queue.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#if defined(__linux__) && __has_include(<linux/io_uring.h>)
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#endif

namespace penstock {
namespace {

// Whether a read is done with this result of a call.
bool take_result(DiskRead& read, std::int64_t result) {
  if (result == -EINTR) return false;
  if (result < 0) {
    read.error = static_cast<int>(-result);
    return true;
  }
  read.got += static_cast<std::uint64_t>(result);
  return result == 0 || read.got >= read.bytes || read.got % read.unit != 0;
}

void read_by_pread(DiskRead& read) {
  bool is_done = read.bytes == read.got;
  while (!is_done) {
    const ssize_t got =
        pread(read.descriptor, read.to + read.got, read.bytes - read.got, static_cast<off_t>(read.offset + read.got));
    is_done = take_result(read, got < 0 ? -errno : got);
  }
}

}  // namespace

#ifdef IORING_FEAT_FAST_POLL  // of Linux 5.7, which also has all else that is used here

// The three system calls, on memory that is shared with the kernel. For one thread at a time.
class DiskQueue::Ring {
 public:
  // Null where the system does not want to: an old kernel, a container that forbids it, no descriptors or memory left.
  static std::unique_ptr<Ring> make() {
    io_uring_params params = {};
    params.flags = kNoInterrupts;
    auto found = static_cast<int>(syscall(kSetup, kDepth, &params));
    if (found < 0 && errno == EINVAL) {  // before Linux 5.19
      params = {};
      found = static_cast<int>(syscall(kSetup, kDepth, &params));
    }
    if (found < 0) return nullptr;
    std::unique_ptr<Ring> made(new Ring(found));
    constexpr std::uint32_t kNeeded = IORING_FEAT_SINGLE_MMAP | IORING_FEAT_NODROP | IORING_FEAT_FAST_POLL;
    if ((params.features & kNeeded) != kNeeded || !made->map(params)) return nullptr;
    return made;
  }
  ~Ring() {
    if (entries_ != nullptr) munmap(entries_, entries_bytes_);
    if (shared_ != nullptr) munmap(shared_, shared_bytes_);
    close(descriptor_);
  }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  // False if the ring is of no more use: nothing is under way then, and what is not done is to be read in another way.
  bool read(std::span<DiskRead> reads) {
    std::vector<std::uint32_t> again;
    again.reserve(reads.size());  // nothing may throw while the kernel writes into our memory
    std::size_t next = 0;
    std::uint32_t under_way = 0;
    const auto take = [&] {
      return take_completions([&](const io_uring_cqe& found) {
        --under_way;
        const auto index = static_cast<std::uint32_t>(found.user_data);
        if (found.res == -EAGAIN) {  // it would have to wait, and the file system cannot do that in the background
          read_by_pread(reads[index]);
        } else if (!take_result(reads[index], found.res)) {
          again.push_back(index);
        }
      });
    };
    while (true) {
      while (under_way < size_ && (next < reads.size() || !again.empty())) {
        const auto index = again.empty() ? static_cast<std::uint32_t>(next++) : again.back();
        if (!again.empty()) again.pop_back();
        if (reads[index].bytes == reads[index].got) continue;
        put(reads[index], index);
        ++under_way;
      }
      if (under_way == 0) return true;
      if (take() > 0) continue;
      const unsigned unsent = tail_ - load(sent_);
      const bool is_last = next == reads.size() && again.empty();
      const std::uint32_t wanted = is_last ? under_way : std::min(under_way, kTogether);
      const long result = syscall(kEnter, descriptor_, unsent, wanted, IORING_ENTER_GETEVENTS, nullptr, 0);
      if (result >= 0 || errno == EINTR || errno == EAGAIN || errno == EBUSY) continue;
      under_way -= tail_ - load(sent_);  // those never began
      while (under_way > 0) {            // the kernel writes into our memory until they are done
        if (take() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      return false;
    }
  }

 private:
  static constexpr long kSetup = 425;  // the same on all processors
  static constexpr long kEnter = 426;
  static constexpr std::uint32_t kNoInterrupts = 1U << 8;  // IORING_SETUP_COOP_TASKRUN: whoever waits takes what is done
  static constexpr std::uint32_t kTogether = 16;           // reads that are waited for at once, of many under way

  explicit Ring(int descriptor) : descriptor_(descriptor) {}

  static std::uint32_t load(const std::uint32_t* at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
  static void store(std::uint32_t* at, std::uint32_t value) { __atomic_store_n(at, value, __ATOMIC_RELEASE); }

  void* map_at(std::uint64_t offset, std::size_t bytes) const {
    void* const found =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, descriptor_, static_cast<off_t>(offset));
    return found == MAP_FAILED ? nullptr : found;
  }

  bool map(const io_uring_params& params) {
    shared_bytes_ = std::max<std::size_t>(params.sq_off.array + params.sq_entries * sizeof(std::uint32_t),
                                          params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe));
    entries_bytes_ = params.sq_entries * sizeof(io_uring_sqe);
    shared_ = static_cast<std::byte*>(map_at(IORING_OFF_SQ_RING, shared_bytes_));
    entries_ = static_cast<io_uring_sqe*>(map_at(IORING_OFF_SQES, entries_bytes_));
    if (shared_ == nullptr || entries_ == nullptr) return false;
    const auto word = [&](std::uint32_t offset) { return reinterpret_cast<std::uint32_t*>(shared_ + offset); };
    sent_ = word(params.sq_off.head);
    sq_tail_ = word(params.sq_off.tail);
    sq_mask_ = *word(params.sq_off.ring_mask);
    order_ = word(params.sq_off.array);
    cq_head_ = word(params.cq_off.head);
    cq_tail_ = word(params.cq_off.tail);
    cq_mask_ = *word(params.cq_off.ring_mask);
    completions_ = reinterpret_cast<const io_uring_cqe*>(shared_ + params.cq_off.cqes);
    size_ = params.sq_entries;
    return true;
  }

  void put(const DiskRead& read, std::uint32_t index) {
    constexpr std::uint64_t kMost = 1 << 30;  // a length is 32 bits
    const std::uint32_t place = tail_ & sq_mask_;
    io_uring_sqe& entry = entries_[place];
    std::memset(&entry, 0, sizeof(entry));
    entry.opcode = IORING_OP_READ;
    entry.fd = read.descriptor;
    entry.off = read.offset + read.got;
    entry.addr = reinterpret_cast<std::uint64_t>(read.to + read.got);
    entry.len = static_cast<std::uint32_t>(std::min(kMost, read.bytes - read.got));
    entry.user_data = index;
    order_[place] = place;
    store(sq_tail_, ++tail_);
  }

  template <class Take>
  std::uint32_t take_completions(const Take& take) {
    std::uint32_t head = *cq_head_;
    const std::uint32_t end = load(cq_tail_);
    const std::uint32_t count = end - head;
    for (; head != end; ++head) take(completions_[head & cq_mask_]);
    store(cq_head_, head);
    return count;
  }

  int descriptor_;
  std::byte* shared_ = nullptr;
  std::size_t shared_bytes_ = 0;
  io_uring_sqe* entries_ = nullptr;
  std::size_t entries_bytes_ = 0;
  std::uint32_t* sent_ = nullptr;  // by us, seen by the kernel
  std::uint32_t* sq_tail_ = nullptr;
  std::uint32_t sq_mask_ = 0;
  std::uint32_t* order_ = nullptr;
  std::uint32_t* cq_head_ = nullptr;
  std::uint32_t* cq_tail_ = nullptr;
  std::uint32_t cq_mask_ = 0;
  const io_uring_cqe* completions_ = nullptr;
  std::uint32_t size_ = 0;
  std::uint32_t tail_ = 0;
};

#else

class DiskQueue::Ring {
 public:
  static std::unique_ptr<Ring> make() { return nullptr; }
  bool read(std::span<DiskRead>) { return false; }
};

#endif

// Threads that read where there are no rings, for all callers at once. The caller reads too, so that none have to be there.
class DiskQueue::Crew {
 public:
  ~Crew() {
    {
      const std::lock_guard lock(mutex_);
      is_closing_ = true;
    }
    work_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void read(std::span<DiskRead> reads) {
    Job job{reads};
    std::unique_lock lock(mutex_);
    const std::size_t wanted = std::min<std::size_t>(kThreads, reads.size() - 1);
    try {
      while (threads_.size() < wanted) threads_.emplace_back([this] { serve(); });
    } catch (const std::system_error&) {  // those that are there do it
    }
    jobs_.push_back(&job);
    work_.notify_all();
    while (job.next < reads.size()) read_next(job, lock);
    done_.wait(lock, [&] { return job.finished == reads.size(); });
  }

 private:
  struct Job {
    std::span<DiskRead> reads;
    std::size_t next = 0;
    std::size_t finished = 0;
  };

  void read_next(Job& job, std::unique_lock<std::mutex>& lock) {
    DiskRead& mine = job.reads[job.next++];
    if (job.next == job.reads.size()) std::erase(jobs_, &job);
    lock.unlock();
    read_by_pread(mine);
    lock.lock();
    if (++job.finished == job.reads.size()) done_.notify_all();
  }

  void serve() {
    std::unique_lock lock(mutex_);
    while (true) {
      work_.wait(lock, [&] { return is_closing_ || !jobs_.empty(); });
      if (is_closing_) return;
      Job& job = *jobs_.front();
      if (jobs_.size() > 1) std::rotate(jobs_.begin(), jobs_.begin() + 1, jobs_.end());
      read_next(job, lock);
    }
  }

  std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable done_;
  std::deque<Job*> jobs_;
  std::vector<std::thread> threads_;
  bool is_closing_ = false;
};

struct DiskQueue::State {
  std::mutex mutex;
  std::vector<std::unique_ptr<Ring>> idle;
  bool has_no_rings = false;  // the first was refused
  Crew crew;
};

DiskQueue::DiskQueue(DiskWay way) : way_(way) {}
DiskQueue::~DiskQueue() = default;

std::shared_ptr<DiskQueue> DiskQueue::shared() {
  struct Known {
    std::mutex mutex;
    std::weak_ptr<DiskQueue> last;
  };
  static auto* const own = new ForkLocal<Known>;  // threads may outlive what is destroyed at the end of a process
  Known& known = own->get();
  const std::lock_guard lock(known.mutex);
  std::shared_ptr<DiskQueue> found = known.last.lock();
  if (found == nullptr) known.last = found = std::make_shared<DiskQueue>();
  return found;
}

bool DiskQueue::has_ring() {
  State& state = state_.get();
  const std::lock_guard lock(state.mutex);
  if (way_ == DiskWay::threads || state.has_no_rings) return false;
  if (state.idle.empty()) {
    std::unique_ptr<Ring> made = Ring::make();
    state.has_no_rings = made == nullptr;
    if (made != nullptr) state.idle.push_back(std::move(made));
  }
  return !state.has_no_rings;
}

void DiskQueue::read(std::span<DiskRead> reads) {
  if (reads.empty()) return;
  if (reads.size() == 1) return read_by_pread(reads[0]);
  State& state = state_.get();
  std::unique_ptr<Ring> ring;
  if (way_ == DiskWay::any) {
    std::unique_lock lock(state.mutex);
    if (!state.idle.empty()) {
      ring = std::move(state.idle.back());
      state.idle.pop_back();
    } else if (!state.has_no_rings) {
      lock.unlock();
      ring = Ring::make();
      lock.lock();
      state.has_no_rings |= ring == nullptr;
    }
  }
  if (ring != nullptr && ring->read(reads)) {
    const std::lock_guard lock(state.mutex);
    state.idle.push_back(std::move(ring));
    return;
  }
  std::vector<DiskRead> rest;
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < reads.size(); ++i) {
    if (reads[i].error != 0 || reads[i].got == reads[i].bytes || reads[i].got % reads[i].unit != 0) continue;
    rest.push_back(reads[i]);
    places.push_back(i);
  }
  if (!rest.empty()) state.crew.read(rest);
  for (std::size_t i = 0; i < rest.size(); ++i) reads[places[i]] = rest[i];
}

}  // namespace penstock
