#include "core/thread_pool.h"

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

namespace penstock {
namespace {

struct Job {
  const std::function<void(std::size_t)>* piece;
  std::size_t count;
  std::atomic<std::size_t> next{0};
  std::atomic<bool> failed{false};
  std::mutex mutex{};
  std::size_t failed_piece = SIZE_MAX;
  std::exception_ptr error{};

  void work() {
    while (!failed.load(std::memory_order_relaxed)) {
      const std::size_t mine = next.fetch_add(1, std::memory_order_relaxed);
      if (mine >= count) return;
      try {
        (*piece)(mine);
      } catch (...) {
        const std::lock_guard lock(mutex);
        failed.store(true, std::memory_order_relaxed);
        if (mine < failed_piece) {
          failed_piece = mine;
          error = std::current_exception();
        }
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

  void run(Job& job) {
    const std::lock_guard turn(one_job_);
    {
      const std::lock_guard lock(mutex_);
      job_ = &job;
      ++job_number_;
    }
    changed_.notify_all();
    job.work();
    std::unique_lock lock(mutex_);
    job_ = nullptr;  // helpers that have not looked yet find nothing
    idle_.wait(lock, [&] { return busy_ == 0; });
  }

 private:
  void serve() {
    std::unique_lock lock(mutex_);
    std::uint64_t seen = 0;
    while (true) {
      changed_.wait(lock, [&] { return closing_ || (job_ != nullptr && job_number_ != seen); });
      if (closing_) return;
      seen = job_number_;
      Job* job = job_;
      ++busy_;
      lock.unlock();
      job->work();
      lock.lock();
      if (--busy_ == 0) idle_.notify_all();
    }
  }

  void dismiss() {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  std::mutex one_job_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::condition_variable idle_;
  Job* job_ = nullptr;
  std::uint64_t job_number_ = 0;
  std::size_t busy_ = 0;
  bool closing_ = false;
  std::vector<std::thread> threads_;
};

ThreadPool::ThreadPool(std::size_t threads) : threads_(threads) {
  if (threads == 0) throw std::invalid_argument("a thread pool needs at least 1 thread, got 0");
}

ThreadPool::~ThreadPool() = default;

void ThreadPool::for_each(std::size_t count, const std::function<void(std::size_t)>& piece) {
  Job job{&piece, count};
  if (threads_ == 1 || count <= 1) {
    job.work();
  } else {
    crew_.get(threads_ - 1).run(job);
  }
  if (job.error != nullptr) std::rethrow_exception(job.error);
}

}  // namespace penstock
