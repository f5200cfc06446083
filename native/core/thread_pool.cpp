#include "core/thread_pool.h"

#include <cstdint>
#include <exception>
#include <limits>
#include <mutex>
#include <stdexcept>
#include <vector>

#include "core/sync.h"

namespace penstock {
namespace {

// Batches follow each other within microseconds, and waking a sleeping thread takes 15 to 50 of them, as long as a small batch
// takes to read. So threads look for the next job for a while before they sleep (about 100 microseconds).
using sync::kSpins;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");  // about as long as the pause of x86-64; yield is a nop on most processors
#endif
}

thread_local bool works_alone = false;

// What is done with the pieces of one job. Lives on the stack of the caller, who leaves only when every claimed piece is
// finished.
struct Job {
  const std::function<void(std::size_t)>& piece;
  sync::Atomic<bool> failed{false};
  sync::Mutex mutex{};
  std::size_t failed_piece = std::numeric_limits<std::size_t>::max();
  std::exception_ptr error{};

  void run(std::size_t number) {
    if (failed.load(std::memory_order_relaxed)) return;
    try {
      piece(number);
    } catch (...) {
      const std::lock_guard lock(mutex);
      failed.store(true, std::memory_order_relaxed);
      if (number < failed_piece) {
        failed_piece = number;
        error = std::current_exception();
      }
    }
  }
};

}  // namespace

class Crew {
 public:
  explicit Crew(std::size_t helpers) {
    try {
      for (std::size_t i = 0; i < helpers; ++i) threads_.emplace_back([this] { serve(); });
    } catch (...) {  // the system refused a thread: end those that started
      dismiss();
      throw;
    }
  }
  ~Crew() { dismiss(); }

  // Whether it was done: not if the threads are busy with another job.
  bool run(Job& job, std::size_t count) {
    const std::unique_lock turn(one_job_, std::try_to_lock);
    if (!turn.owns_lock()) return false;
    const std::uint64_t number = (ticket_.load(std::memory_order_relaxed) >> 32) + 1;
    // Closed before anything of the new job is written: a thread that is late for the last job would otherwise find a piece in
    // its old ticket that only the new job has.
    ticket_.exchange((number << 32) - 1);
    job_.store(&job, std::memory_order_relaxed);
    count_.store(count, std::memory_order_relaxed);
    finished_.store(0, std::memory_order_relaxed);
    ticket_.store(number << 32);
    if (sleeping_.load() > 0) {
      const std::lock_guard lock(mutex_);
      changed_.notify_all();
    }
    work(number);
    for (int spin = 0; spin < kSpins && finished_.load() < count; ++spin) pause();
    if (finished_.load() == count) return true;
    std::unique_lock lock(mutex_);
    waiting_.store(true);
    done_.wait(lock, [&] { return finished_.load() == count; });
    waiting_.store(false);
    return true;
  }

 private:
  // Claims pieces of a job until none is left. The fields of a job are read before a piece is claimed: if the claim succeeds the
  // ticket was not closed meanwhile, so what was read is of this job; and its caller waits for every claimed piece.
  void work(std::uint64_t number) {
    std::uint64_t ticket = ticket_.load();
    while (ticket >> 32 == number) {
      Job* const job = job_.load(std::memory_order_relaxed);
      const std::size_t count = count_.load(std::memory_order_relaxed);
      const std::size_t piece = ticket & 0xFFFF'FFFF;
      if (piece >= count) return;
      if (!ticket_.compare_exchange_weak(ticket, ticket + 1)) continue;
      job->run(piece);
      if (finished_.fetch_add(1) + 1 == count && waiting_.load()) {
        const std::lock_guard lock(mutex_);
        done_.notify_one();
      }
      ticket = ticket_.load();
    }
  }

  void serve() {
    std::uint64_t seen = 0;
    while (true) {
      for (int spin = 0; spin < kSpins && ticket_.load() >> 32 == seen && !closing_.load(); ++spin) pause();
      if (ticket_.load() >> 32 == seen) {
        std::unique_lock lock(mutex_);
        sleeping_.fetch_add(1);
        changed_.wait(lock, [&] { return closing_.load() || ticket_.load() >> 32 != seen; });
        sleeping_.fetch_sub(1);
      }
      if (closing_.load()) return;
      seen = ticket_.load() >> 32;
      work(seen);
    }
  }

  void dismiss() {
    {
      const std::lock_guard lock(mutex_);
      closing_.store(true);
    }
    changed_.notify_all();
    for (sync::Thread& thread : threads_) thread.join();
    threads_.clear();
  }

  sync::Mutex one_job_;
  sync::Atomic<std::uint64_t> ticket_{0};  // number of the job << 32 | next piece
  sync::Atomic<Job*> job_{nullptr};
  sync::Atomic<std::size_t> count_{0};
  sync::Atomic<std::size_t> finished_{0};
  sync::Mutex mutex_;  // for sleeping and waking only
  sync::Condition changed_;
  sync::Condition done_;
  sync::Atomic<int> sleeping_{0};
  sync::Atomic<bool> waiting_{false};
  sync::Atomic<bool> closing_{false};
  std::vector<sync::Thread> threads_;
};

ThreadPool::ThreadPool(std::size_t threads) : threads_(threads) {
  if (threads == 0) throw std::invalid_argument("a thread pool needs at least 1 thread, got 0");
}

ThreadPool::~ThreadPool() = default;

void ThreadPool::work_alone() { works_alone = true; }

void ThreadPool::for_each(std::size_t count, const std::function<void(std::size_t)>& piece) {
  if (count > 0xFFFF'FFFE) throw std::invalid_argument("a job has fewer than 2^32 - 1 pieces");
  Job job{piece};
  const bool alone = threads_ == 1 || count <= 1 || works_alone;
  if (alone || !crew_.get(threads_ - 1).run(job, count)) {
    for (std::size_t i = 0; i < count; ++i) job.run(i);
  }
  if (job.error != nullptr) std::rethrow_exception(job.error);
}

}  // namespace penstock
