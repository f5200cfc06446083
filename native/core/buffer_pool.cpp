#include "core/buffer_pool.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <new>
#include <vector>

#include "core/fork_local.h"
#include "core/pages.h"

namespace penstock {
namespace {

constexpr std::size_t kSmallest = 4096;
constexpr std::size_t kHuge = std::size_t{2} << 20;

// Four sizes between each power of two and the next, so at most a fifth is wasted and batches of about one size fit each other.
std::size_t size_class(std::size_t bytes) {
  if (bytes <= kSmallest) return kSmallest;
  const std::size_t step = std::bit_ceil(bytes) / 8;
  return (bytes + step - 1) / step * step;
}

std::byte* allocate(std::size_t capacity) {
  const std::size_t alignment = capacity >= (32 << 10) ? 4096 : 64;
  void* const made = std::aligned_alloc(alignment, (capacity + alignment - 1) / alignment * alignment);
  if (made == nullptr) throw std::bad_alloc();
  if (capacity >= kHuge) {  // advice only, for the pages that lie wholly inside
    const auto low = (reinterpret_cast<std::uintptr_t>(made) + kHuge - 1) / kHuge * kHuge;
    const auto high = (reinterpret_cast<std::uintptr_t>(made) + capacity) / kHuge * kHuge;
    if (high > low) prefer_huge_pages(reinterpret_cast<void*>(low), high - low);
  }
  return static_cast<std::byte*>(made);
}

// Unused buffers, the last one returned last.
class Pool {
 public:
  ~Pool() {
    for (const Kept& one : kept_) std::free(one.data);
  }

  std::byte* take(std::size_t capacity) {
    const std::lock_guard lock(mutex_);
    lent_ += capacity;
    const auto found = std::find_if(kept_.rbegin(), kept_.rend(), [=](const Kept& one) { return one.capacity == capacity; });
    if (found == kept_.rend()) return nullptr;
    std::byte* const data = found->data;
    kept_.erase(std::next(found).base());
    bytes_ -= capacity;
    return data;
  }

  void put(std::byte* data, std::size_t capacity) noexcept {
    std::byte* dropped[kMostKept];
    std::size_t num_dropped = 0;
    {
      const std::lock_guard lock(mutex_);
      lent_ -= std::min(lent_, capacity);  // less where it was taken before a fork
      const bool keeps = capacity <= limit();
      for (const std::size_t count = count_to_drop(keeps ? capacity : 0); num_dropped < count; ++num_dropped) {
        bytes_ -= kept_[num_dropped].capacity;
        dropped[num_dropped] = kept_[num_dropped].data;
      }
      kept_.erase(kept_.begin(), kept_.begin() + static_cast<std::ptrdiff_t>(num_dropped));
      if (keeps) {
        kept_.push_back({data, capacity});
        bytes_ += capacity;
        data = nullptr;
      }
    }
    for (std::size_t i = 0; i < num_dropped; ++i) std::free(dropped[i]);
    std::free(data);
  }

  std::size_t bytes() {
    const std::lock_guard lock(mutex_);
    return bytes_;
  }

 private:
  static constexpr std::size_t kMostKept = 64;
  struct Kept {
    std::byte* data;
    std::size_t capacity;
  };

  // A ring of large batches finds their memory again; when it is closed, all but the least goes back to the system.
  std::size_t limit() const { return std::max(kept_buffer_limit(), lent_); }

  // How many of the oldest must go so that one more fits.
  std::size_t count_to_drop(std::size_t capacity) const {
    std::size_t left = bytes_;
    std::size_t count = 0;
    while (count < kept_.size() && (kept_.size() - count >= kMostKept || left + capacity > limit())) {
      left -= kept_[count++].capacity;
    }
    return count;
  }

  std::mutex mutex_;
  std::vector<Kept> kept_ = reserved();
  std::size_t bytes_ = 0, lent_ = 0;

  static std::vector<Kept> reserved() {
    std::vector<Kept> made;
    made.reserve(kMostKept);
    return made;
  }
};

// Never destroyed: buffers may come back while the program ends.
Pool& pool() {
  static auto* const of_process = new ForkLocal<Pool>;
  return of_process->get();
}

}  // namespace

void ReturnBuffer::operator()(std::byte* data) const noexcept { pool().put(data, capacity); }

Buffer take_buffer(std::size_t bytes) {
  if (bytes > PTRDIFF_MAX / 2) throw std::bad_alloc();
  const std::size_t capacity = size_class(bytes);
  std::byte* const used = pool().take(capacity);
  return {used != nullptr ? used : allocate(capacity), ReturnBuffer{capacity}};
}

std::size_t kept_buffer_bytes() { return pool().bytes(); }

}  // namespace penstock
