#include "core/disk_memory.h"

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <new>
#include <vector>

#include "core/fork_local.h"
#include "core/pages.h"

namespace penstock {
namespace {

constexpr std::size_t kHuge = std::size_t{2} << 20;
constexpr std::size_t kGrain = 64 << 10;
constexpr std::size_t kSlab = kept_disk_memory();

std::size_t round_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

// Huge pages in a row, handed out in grains.
class Slab {
 public:
  explicit Slab(std::size_t bytes) : bytes_(bytes), taken_(bytes / kGrain) {
    void* const whole = mmap(nullptr, bytes + kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (whole == MAP_FAILED) throw std::bad_alloc();
    const auto found = reinterpret_cast<std::uintptr_t>(whole);
    const std::uintptr_t start = round_up(found, kHuge);
    if (start > found) munmap(whole, start - found);
    munmap(reinterpret_cast<void*>(start + bytes), found + kHuge - start);
    start_ = reinterpret_cast<std::byte*>(start);
    prefer_huge_pages(start_, bytes);
    keep_from_children(start_, bytes);
  }
  ~Slab() { munmap(start_, bytes_); }
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;

  // The first place with that much room, so that little memory is touched; null if there is none.
  std::byte* take(std::size_t bytes) {
    const std::size_t wanted = bytes / kGrain;
    auto low = taken_.begin();
    while (true) {
      low = std::find(low, taken_.end(), false);
      if (static_cast<std::size_t>(taken_.end() - low) < wanted) return nullptr;
      const auto high = low + static_cast<std::ptrdiff_t>(wanted);
      const auto other = std::find(low, high, true);
      if (other == high) {
        std::fill(low, high, true);
        used_ += bytes;
        return start_ + static_cast<std::size_t>(low - taken_.begin()) * kGrain;
      }
      low = other;
    }
  }

  void put(const std::byte* data, std::size_t bytes) noexcept {
    const auto low = taken_.begin() + (data - start_) / static_cast<std::ptrdiff_t>(kGrain);
    std::fill(low, low + static_cast<std::ptrdiff_t>(bytes / kGrain), false);
    used_ -= bytes;
  }

  bool holds(const std::byte* data) const { return data >= start_ && data < start_ + bytes_; }
  bool is_unused() const { return used_ == 0; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* start_ = nullptr;
  std::size_t bytes_;
  std::size_t used_ = 0;
  std::vector<bool> taken_;  // grains
};

class Arena {
 public:
  DiskMemory take(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    for (const std::unique_ptr<Slab>& slab : slabs_) {
      if (std::byte* const found = slab->take(bytes); found != nullptr) return {found, {bytes}};
    }
    slabs_.push_back(std::make_unique<Slab>(std::max(kSlab, round_up(bytes, kHuge))));
    return {slabs_.back()->take(bytes), {bytes}};
  }

  void put(const std::byte* data, std::size_t bytes) noexcept {
    std::unique_ptr<Slab> dropped;  // given back without the lock
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(slabs_.begin(), slabs_.end(), [=](const auto& slab) { return slab->holds(data); });
    (*found)->put(data, bytes);
    if (!(*found)->is_unused()) return;
    const bool is_spare = (*found)->bytes() > kSlab || std::any_of(slabs_.begin(), slabs_.end(), [&](const auto& slab) {
                            return slab != *found && slab->is_unused();
                          });
    if (!is_spare) return;
    dropped = std::move(*found);
    slabs_.erase(found);
  }

  std::size_t bytes() {
    const std::lock_guard lock(mutex_);
    std::size_t sum = 0;
    for (const std::unique_ptr<Slab>& slab : slabs_) sum += slab->bytes();
    return sum;
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Slab>> slabs_;
};

// Never destroyed: memory may come back while the program ends.
Arena& arena() {
  static auto* const of_process = new ForkLocal<Arena>;
  return of_process->get();
}

}  // namespace

void ReturnDiskMemory::operator()(std::byte* data) const noexcept {
  if (forks == fork_count()) arena().put(data, bytes);  // else the parent's
}

DiskMemory take_disk_memory(std::size_t bytes) {
  if (bytes > PTRDIFF_MAX / 2) throw std::bad_alloc();
  return arena().take(round_up(std::max<std::size_t>(1, bytes), kGrain));
}

std::size_t disk_memory_bytes() { return arena().bytes(); }

}  // namespace penstock
