// Things opened on first use, in numbered slots, a bounded number of them at once.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace penstock {

// A number of the calling thread's own.
inline std::size_t thread_number() {
  static std::atomic<std::size_t> next{0};
  thread_local const std::size_t mine = next.fetch_add(1, std::memory_order_relaxed);
  return mine;
}

// Slots are filled under a mutex and read without it; they are emptied only when no thread holds a Use. Safe to use from several
// threads.
template <class T>
class SlotCache {
  // How many threads hold a Use, in parts, so that threads seldom write to the same cache line. (Two threads that read 12 stores
  // spent 5 us of a batch in a shared_mutex each.)
  struct alignas(64) Users {
    std::atomic<std::uint32_t> count{0};
  };

 public:
  explicit SlotCache(std::size_t slots) : slots_(slots), owners_(slots) {}

  // While one exists, nothing that was found goes away.
  class Use {
   public:
    Use(Use&& other) noexcept : cache_(other.cache_), users_(std::exchange(other.users_, nullptr)) {}
    Use& operator=(Use&&) = delete;
    ~Use() {
      if (users_ != nullptr) cache_.leave(*users_);
    }

   private:
    friend class SlotCache;
    Use(SlotCache& cache, Users& users) : cache_(cache), users_(&users) {}

    SlotCache& cache_;
    Users* users_;
  };
  Use use() {
    Users& mine = users_[thread_number() % users_.size()];
    while (true) {
      mine.count.fetch_add(1);
      if (!is_closing_.load()) return Use(*this, mine);
      leave(mine);
      // Wait for it: as long as new uses begin before old ones end, no thread is ever alone.
      const std::lock_guard turn(closing_);
    }
  }

  // What the slot holds, opened now if it holds nothing; open() gives a shared_ptr<const T> or throws.
  template <class Open>
  const T& get(std::size_t slot, const Open& open) {
    const T* ready = slots_[slot].load(std::memory_order_acquire);
    if (ready != nullptr) [[likely]]
      return *ready;
    std::shared_ptr<const T> made = open();
    const std::lock_guard lock(change_);
    if (owners_[slot] == nullptr) {
      owners_[slot] = std::move(made);
      slots_[slot].store(owners_[slot].get(), std::memory_order_release);
      ++count_;
    }
    return *owners_[slot];
  }

  // A share of what get() found, to outlive the Use.
  std::shared_ptr<const T> share(std::size_t slot) {
    const std::lock_guard lock(change_);
    return owners_[slot];
  }

  // To be called with a Use: calls look(found) for a few of those that are open, others every time.
  template <class Look>
  void look_at_some(const Look& look) {
    const std::size_t tried = std::min<std::size_t>(slots_.size(), 64);
    const std::size_t first = look_.fetch_add(tried, std::memory_order_relaxed);
    for (std::size_t i = 0, looked = 0; i < tried && looked < 8; ++i) {
      const T* const open = slots_[(first + i) % slots_.size()].load(std::memory_order_acquire);
      if (open == nullptr) continue;
      look(*open);
      ++looked;
    }
  }

  // To be called without a Use: when more than `most` slots are full, waits until no thread holds one, and empties some until
  // half of that is left, telling gone(slot) before each. Does nothing while another thread does it.
  template <class Gone>
  void trim(std::size_t most, const Gone& gone) {
    if (count_.load(std::memory_order_relaxed) <= most) return;
    const std::unique_lock turn(closing_, std::try_to_lock);
    if (!turn.owns_lock()) return;
    alone([&] {
      for (std::size_t seen = 0; seen < slots_.size() && count_ > most / 2; ++seen) empty(hand_++ % slots_.size(), gone);
    });
  }

  // To be called without a Use: waits until no thread holds one, then empties the slot, telling gone(slot) before, if it is full.
  template <class Gone>
  void close(std::size_t slot, const Gone& gone) {
    const std::lock_guard turn(closing_);
    alone([&] { empty(slot, gone); });
  }

 private:
  void leave(Users& users) {
    if (users.count.fetch_sub(1) == 1 && is_closing_.load()) users.count.notify_all();
  }

  // Calls work() while no thread holds a Use; with closing_ locked.
  template <class Work>
  void alone(const Work& work) {
    is_closing_.store(true);  // a thread that counts itself after this sees it; one that did before is seen here
    const Reopen reopen{is_closing_};
    for (Users& users : users_) {
      for (std::uint32_t count = users.count.load(); count != 0; count = users.count.load()) users.count.wait(count);
    }
    work();
  }

  struct Reopen {
    std::atomic<bool>& is_closing;
    ~Reopen() { is_closing.store(false); }
  };

  // No thread may hold a Use.
  template <class Gone>
  void empty(std::size_t slot, const Gone& gone) {
    const std::lock_guard lock(change_);
    if (owners_[slot] == nullptr) return;
    gone(slot);
    slots_[slot].store(nullptr);
    owners_[slot].reset();
    --count_;
  }

  std::mutex closing_;
  std::atomic<bool> is_closing_{false};
  std::array<Users, 8> users_;
  std::mutex change_;
  std::vector<std::atomic<const T*>> slots_;
  std::vector<std::shared_ptr<const T>> owners_;
  std::atomic<std::size_t> count_{0};  // changed under the mutex
  std::size_t hand_ = 0;               // where the next eviction begins
  std::atomic<std::size_t> look_{0};   // where the next look begins
};

}  // namespace penstock
