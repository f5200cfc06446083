#include "core/landing.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/pages.h"
#include "core/spare_frames.h"

namespace penstock {
namespace {

std::uint64_t page_bytes() {
  static const auto bytes = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

// A smaller one wakes the thread more often, a larger one lets the sender wait for room.
constexpr std::uint64_t kLowWater = std::uint64_t{256} << 10;

// Bytes that must have come before a wait for a socket ends. Advice only: a failure changes nothing.
void set_low_water(int socket, std::uint64_t bytes) {
  const int value = static_cast<int>(bytes);
  setsockopt(socket, SOL_SOCKET, SO_RCVLOWAT, &value, sizeof value);
}

void check_range(std::uint64_t start, std::uint64_t stop, std::uint64_t bytes) {
  if (start > stop || stop > bytes) {
    throw std::invalid_argument("expected a range within [0, " + std::to_string(bytes) + "), got [" + std::to_string(start) +
                                ", " + std::to_string(stop) + ")");
  }
}

[[noreturn]] void refused(std::uint64_t bytes, const char* what) {
  throw SystemError(errno, "memory", std::string(what) + " of an object of " + std::to_string(bytes) + " bytes");
}

}  // namespace

std::byte* Landing::map() {
  std::byte* known = data_.load(std::memory_order_acquire);
  if (known != nullptr) return known;
  void* const made = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (made == MAP_FAILED) refused(bytes_, "address space");
  prefer_small_pages(made, bytes_);  // a range of a few bytes takes one small page
  if (data_.compare_exchange_strong(known, static_cast<std::byte*>(made))) return static_cast<std::byte*>(made);
  munmap(made, bytes_);  // another thread was first
  return known;
}

void Landing::expect(std::uint64_t start, std::uint64_t stop) {
  check_range(start, stop, bytes_);
  if (stop - start < kFrameBytes) return;
  std::byte* const base = map();
  const auto origin = reinterpret_cast<std::uintptr_t>(base);
  const std::uintptr_t low = (origin + start + kFrameBytes - 1) / kFrameBytes * kFrameBytes;
  const std::uintptr_t high = (origin + stop) / kFrameBytes * kFrameBytes;
  if (low >= high) return;
  prefer_huge_pages(reinterpret_cast<void*>(low), high - low);
  const std::unique_lock lock(change_, std::try_to_lock);
  if (!lock.owns_lock()) return;  // only in a forked child, whose parent's thread held it
  bool spare = true;
  for (std::uintptr_t at = low; at < high; at += kFrameBytes) {
    spare = spare && SpareFrames::shared().take(reinterpret_cast<std::byte*>(at));
    frames_.insert(at - origin);
  }
}

void Landing::give_frames(std::byte* base, std::uint64_t start, std::uint64_t stop) {
  const std::unique_lock lock(change_, std::try_to_lock);
  if (!lock.owns_lock()) return;  // as above
  auto frame = frames_.lower_bound(start);
  bool room = true;
  while (frame != frames_.end() && *frame + kFrameBytes <= stop) {
    room = room && SpareFrames::shared().give(base + *frame);
    frame = frames_.erase(frame);
  }
}

void Landing::write(std::uint64_t offset, std::span<const std::byte> bytes) {
  if (offset > bytes_ || bytes.size() > bytes_ - offset) {
    throw std::invalid_argument("expected bytes within [0, " + std::to_string(bytes_) + "), got " + std::to_string(bytes.size()) +
                                " from " + std::to_string(offset));
  }
  if (!bytes.empty()) std::memcpy(map() + offset, bytes.data(), bytes.size());
}

Received Landing::receive(int socket, std::uint64_t start, std::uint64_t stop, std::chrono::milliseconds most) {
  check_range(start, stop, bytes_);
  if (start == stop) return {0, true};
  std::byte* const base = map();
  const auto until = std::chrono::steady_clock::now() + most;
  std::uint64_t at = start;
  bool is_open = true;
  while (at < stop && is_open) {
    const ssize_t count = recv(socket, base + at, stop - at, MSG_DONTWAIT);
    if (count >= 0) {
      at += static_cast<std::uint64_t>(count);
      is_open = count > 0;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
      if (left.count() <= 0) break;
      set_low_water(socket, std::min(kLowWater, stop - at));
      pollfd waited{socket, POLLIN, 0};
      if (poll(&waited, 1, static_cast<int>(left.count())) < 0 && errno != EINTR) is_open = false;
    } else {
      is_open = errno == EINTR;
    }
  }
  set_low_water(socket, 1);
  return {at - start, is_open};
}

void Landing::release(std::uint64_t start, std::uint64_t stop) {
  const std::uint64_t page = page_bytes();
  if (start > stop || stop > bytes_ || start % page != 0 || (stop % page != 0 && stop != bytes_)) {
    throw std::invalid_argument("expected whole pages of " + std::to_string(page) + " bytes within [0, " +
                                std::to_string(bytes_) + "), got [" + std::to_string(start) + ", " + std::to_string(stop) + ")");
  }
  std::byte* const at = data_.load(std::memory_order_acquire);
  if (at == nullptr || start == stop) return;
  give_frames(at, start, stop);
  prefer_small_pages(at + start, stop - start);  // a small range that comes here later takes small pages
  if (!discard_pages(at + start, stop - start)) refused(bytes_, "memory");
}

void Landing::drop() {
  std::byte* const at = data_.exchange(nullptr);
  if (at == nullptr) return;
  give_frames(at, 0, bytes_);
  munmap(at, bytes_);
}

std::uint64_t Landing::resident() const {
  constexpr std::uint64_t kPagesAtOnce = 1 << 16;
  const std::uint64_t page = page_bytes();
  std::byte* const at = data_.load(std::memory_order_acquire);
  if (at == nullptr) return 0;
  const std::uint64_t pages = (bytes_ + page - 1) / page;
  std::vector<unsigned char> flags(std::min(pages, kPagesAtOnce));
  std::uint64_t found = 0;
  for (std::uint64_t first = 0; first < pages; first += flags.size()) {
    const std::uint64_t count = std::min<std::uint64_t>(flags.size(), pages - first);
    if (!look_for_pages(at + first * page, count * page, flags.data())) refused(bytes_, "pages");
    found += static_cast<std::uint64_t>(
        std::count_if(flags.data(), flags.data() + count, [](unsigned char flag) { return (flag & 1) != 0; }));
  }
  return found * page;
}

}  // namespace penstock
