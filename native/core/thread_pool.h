// A fixed set of threads that share the pieces of one job at a time, and come back to life after fork().
#pragma once

#include <cstddef>
#include <functional>

#include "core/fork_local.h"

namespace penstock {

// The threads of one process. Started by the first job, ended by the destructor.
class Crew;

// Safe to use from several threads: while the threads are busy with one job, the caller of another does it alone. In a forked
// child the first job starts new threads.
class ThreadPool {
 public:
  // From now on the calling thread does its jobs alone, in every pool: for one of several threads that work side by side anyway.
  static void work_alone();

  // threads: how many pieces run at once, the calling thread included; at least 1.
  explicit ThreadPool(std::size_t threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  std::size_t size() const { return threads_; }

  // Calls piece(0) ... piece(count - 1), each once, in any order, and returns when all are done. If pieces throw, the remaining
  // ones are not started and the exception of the lowest piece that threw is raised here. A piece may not call for_each.
  void for_each(std::size_t count, const std::function<void(std::size_t)>& piece);

 private:
  std::size_t threads_;
  ForkLocal<Crew> crew_;
};

}  // namespace penstock
