// A value that a forked child replaces instead of sharing.
#pragma once

#include <unistd.h>

#include <atomic>
#include <memory>

namespace penstock {

// Threads and locks do not survive fork(): the child has none of the parent's threads, and a lock one of them held stays locked
// for ever. get() therefore makes a fresh T in every process; the copy inherited from the parent is neither used nor destroyed.
// Safe to use from several threads.
template <class T>
class ForkLocal {
 public:
  ForkLocal() = default;
  ForkLocal(const ForkLocal&) = delete;
  ForkLocal& operator=(const ForkLocal&) = delete;
  ~ForkLocal() {
    Owned* owned = owned_.load();
    if (owned != nullptr && owned->process == getpid()) delete owned;
  }

  template <class... Args>
  T& get(const Args&... args) {
    Owned* current = owned_.load();
    if (current != nullptr && current->process == getpid()) return current->value;
    auto fresh = std::make_unique<Owned>(args...);
    if (owned_.compare_exchange_strong(current, fresh.get())) return fresh.release()->value;
    return current->value;  // another thread was first
  }

 private:
  struct Owned {
    template <class... Args>
    explicit Owned(const Args&... args) : value(args...) {}
    const pid_t process = getpid();
    T value;
  };

  std::atomic<Owned*> owned_{nullptr};  // not a mutex: fork() could copy a locked one
};

}  // namespace penstock
