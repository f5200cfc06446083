// Threads, locks and atomics under a scheduler that decides which thread goes on, for programs that are built with
// PENSTOCK_EXPLORE.
//
// Threads are contexts of one thread of the system. Before every operation on a lock, a condition or an atomic the scheduler may
// let another thread go on: a schedule is the list of its decisions. Memory is sequentially consistent here: what only weaker
// orders would show is left to the thread sanitizer. Conditions do not time out, so that a lost notification is a deadlock, which
// is found.
#pragma once

#include <cxxabi.h>
#include <ucontext.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace penstock::explore {

constexpr std::size_t kStackBytes = 128 << 10;
constexpr std::size_t kMostSteps = 100'000;  // of a schedule that ends

// Which of the threads that can go on does. The first option is the current thread, if it can: to take another one preempts it.
class Chooser {
 public:
  virtual ~Chooser() = default;
  virtual std::size_t choose(const std::vector<std::size_t>& options, bool has_current) = 0;
};

class Scheduler {
 public:
  // Runs `body` in thread 0 until all threads are done. What went wrong: empty, or a deadlock, or a failed expectation.
  std::string run(const std::function<void()>& body, Chooser& chooser) {
    now() = this;
    chooser_ = &chooser;
    wrong_.clear();
    steps_ = 0;
    fibers_.clear();
    spawn(body);
    current_ = 0;
    swapcontext(&root_, &fibers_[0]->context);
    *reinterpret_cast<ExceptionState*>(abi::__cxa_get_globals()) = {nullptr, 0};
    for (auto& fiber : fibers_) stacks_.push_back(std::move(fiber->stack));
    now() = nullptr;
    return wrong_;
  }

  static Scheduler*& now() {
    static Scheduler* scheduler = nullptr;
    return scheduler;
  }

  std::size_t spawn(std::function<void()> body) {
    auto fiber = std::make_unique<Fiber>();
    fiber->body = std::move(body);
    if (stacks_.empty()) stacks_.push_back(std::make_unique<std::byte[]>(kStackBytes));
    fiber->stack = std::move(stacks_.back());
    stacks_.pop_back();
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = fiber->stack.get();
    fiber->context.uc_stack.ss_size = kStackBytes;
    fiber->context.uc_link = nullptr;
    makecontext(&fiber->context, [] { now()->enter(); }, 0);
    fibers_.push_back(std::move(fiber));
    return fibers_.size() - 1;
  }

  // Another thread may go on here.
  void point() {
    if (++steps_ > kMostSteps) fail("no end: more than " + std::to_string(kMostSteps) + " steps");
    next(true);
  }

  // The current thread goes on when `may_go` says so, which is asked whenever a thread is chosen.
  void block(std::function<bool()> may_go) {
    fibers_[current_]->may_go = std::move(may_go);
    next(false);
    fibers_[current_]->may_go = nullptr;
  }

  bool is_done(std::size_t fiber) const { return fibers_[fiber]->is_done; }

  // The schedule is wrong: it ends here, and what its threads hold is left behind.
  [[noreturn]] void fail(std::string text) {
    wrong_ = std::move(text);
    setcontext(&root_);
    __builtin_unreachable();
  }

  std::size_t steps() const { return steps_; }

 private:
  struct ExceptionState {  // of the C++ runtime, which keeps it by thread of the system
    void* caught;
    unsigned int uncaught;
  };
  struct Fiber {
    ucontext_t context;
    std::unique_ptr<std::byte[]> stack;
    std::function<void()> body;
    std::function<bool()> may_go;
    bool is_done = false;
    ExceptionState exceptions{nullptr, 0};
  };

  void enter() {
    fibers_[current_]->body();
    fibers_[current_]->is_done = true;
    next(false);
  }

  bool can_go(std::size_t fiber) const {
    const Fiber& one = *fibers_[fiber];
    return !one.is_done && (one.may_go == nullptr || one.may_go());
  }

  void next(bool current_can_go) {
    options_.clear();
    const bool has_current = current_can_go || can_go(current_);
    if (has_current) options_.push_back(current_);
    for (std::size_t fiber = 0; fiber < fibers_.size(); ++fiber)
      if (fiber != current_ && can_go(fiber)) options_.push_back(fiber);
    if (options_.empty()) {
      const bool all = std::all_of(fibers_.begin(), fibers_.end(), [](const auto& fiber) { return fiber->is_done; });
      if (!all) wrong_ = "deadlock: no thread can go on";
      setcontext(&root_);
    }
    const std::size_t chosen = options_.size() == 1 ? options_[0] : options_[chooser_->choose(options_, has_current)];
    if (chosen == current_) return;
    Fiber& from = *fibers_[current_];
    auto* const exceptions = reinterpret_cast<ExceptionState*>(abi::__cxa_get_globals());
    from.exceptions = *exceptions;
    *exceptions = fibers_[chosen]->exceptions;
    current_ = chosen;
    swapcontext(&from.context, &fibers_[chosen]->context);
  }

  ucontext_t root_{};
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<std::unique_ptr<std::byte[]>> stacks_;
  std::vector<std::size_t> options_;
  std::size_t current_ = 0;
  std::size_t steps_ = 0;
  std::string wrong_;
  Chooser* chooser_ = nullptr;
};

inline void expect(bool ok, const char* text) {
  if (!ok) Scheduler::now()->fail(text);
}

}  // namespace penstock::explore

namespace penstock::sync {

using explore::Scheduler;

class Mutex {
 public:
  void lock() {
    Scheduler::now()->point();
    while (held_) Scheduler::now()->block([this] { return !held_; });
    held_ = true;
  }
  bool try_lock() {
    Scheduler::now()->point();
    if (held_) return false;
    held_ = true;
    return true;
  }
  void unlock() {
    held_ = false;
    Scheduler::now()->point();
  }

 private:
  bool held_ = false;
};

class Condition {
 public:
  void wait(std::unique_lock<Mutex>& lock) {
    Scheduler::now()->point();  // what was true for the last time before the wait may have changed when it begins
    Waiter mine;
    waiters_.push_back(&mine);
    lock.unlock();
    if (!mine.is_woken) Scheduler::now()->block([&mine] { return mine.is_woken; });
    lock.lock();
  }
  template <class Predicate>
  void wait(std::unique_lock<Mutex>& lock, Predicate predicate) {
    while (!predicate()) wait(lock);
  }
  template <class Time>
  std::cv_status wait_until(std::unique_lock<Mutex>& lock, const Time&) {
    wait(lock);
    return std::cv_status::no_timeout;
  }
  void notify_one() {
    Scheduler::now()->point();
    if (waiters_.empty()) return;
    waiters_.front()->is_woken = true;
    waiters_.erase(waiters_.begin());
  }
  void notify_all() {
    Scheduler::now()->point();
    for (Waiter* waiter : waiters_) waiter->is_woken = true;
    waiters_.clear();
  }

 private:
  struct Waiter {
    bool is_woken = false;
  };
  std::vector<Waiter*> waiters_;
};

class Thread {
 public:
  explicit Thread(std::function<void()> body) : fiber_(Scheduler::now()->spawn(std::move(body))) { Scheduler::now()->point(); }
  void join() {
    const std::size_t fiber = fiber_;
    if (!Scheduler::now()->is_done(fiber)) Scheduler::now()->block([fiber] { return Scheduler::now()->is_done(fiber); });
  }

 private:
  std::size_t fiber_;
};

template <class T>
class Atomic {
 public:
  Atomic(T value) : value_(value) {}
  T load(std::memory_order = std::memory_order_seq_cst) const { return point(), value_; }
  void store(T value, std::memory_order = std::memory_order_seq_cst) { point(), value_ = value; }
  T exchange(T value) { return point(), std::exchange(value_, value); }
  T fetch_add(T value) { return point(), std::exchange(value_, static_cast<T>(value_ + value)); }
  T fetch_sub(T value) { return point(), std::exchange(value_, static_cast<T>(value_ - value)); }
  bool compare_exchange_weak(T& expected, T wanted) {
    point();
    if (value_ != expected) return expected = value_, false;
    return value_ = wanted, true;
  }

 private:
  static void point() { Scheduler::now()->point(); }
  T value_;
};

constexpr int kSpins = 1;

}  // namespace penstock::sync
