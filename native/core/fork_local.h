// A value that a forked child replaces instead of sharing.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <memory>

namespace penstock {

// How often this process and those before it were forked since the library was first asked: parent and child get different
// answers, for the price of a load, where getpid() is a call of the system.
inline std::uint32_t fork_count() {
  static std::atomic<std::uint32_t> count{0};
  static const int registered = pthread_atfork(nullptr, nullptr, [] { count.fetch_add(1, std::memory_order_relaxed); });
  (void)registered;
  return count.load(std::memory_order_relaxed);
}

// Threads and locks do not survive fork(): the child has none of the parent's threads, and a lock one of them held stays
// locked. get() therefore makes a fresh T in every process; the copy inherited from the parent is neither used nor destroyed.
// Safe to use from several threads.
template <class T>
class ForkLocal {
 public:
  ForkLocal() = default;
  ForkLocal(const ForkLocal&) = delete;
  ForkLocal& operator=(const ForkLocal&) = delete;
  ~ForkLocal() {
    Owned* owned = owned_.load();
    if (owned != nullptr && owned->forks == fork_count()) delete owned;
  }

  template <class... Args>
  T& get(const Args&... args) {
    Owned* current = owned_.load();
    if (current != nullptr && current->forks == fork_count()) return current->value;
    auto fresh = std::make_unique<Owned>(args...);
    if (owned_.compare_exchange_strong(current, fresh.get())) return fresh.release()->value;
    return current->value;  // another thread was first
  }

 private:
  struct Owned {
    template <class... Args>
    explicit Owned(const Args&... args) : value(args...) {}
    const std::uint32_t forks = fork_count();
    T value;
  };

  std::atomic<Owned*> owned_{nullptr};  // not a mutex: fork() could copy a locked one
};

}  // namespace penstock
