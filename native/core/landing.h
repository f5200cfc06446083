// Memory for the bytes of one remote object, at their own offsets: address space of the object's size, of which only the ranges
// that were written and not released take memory.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <set>
#include <span>

namespace penstock {

// What a connection gave: bytes, and whether it has not ended.
struct Received {
  std::uint64_t bytes;
  bool is_open;
};

// Costs nothing before the first write. Safe to use from several threads for different ranges; a range is released, and all is
// dropped, only when no thread reads or writes there. A forked child has a copy of its own.
class Landing {
 public:
  explicit Landing(std::uint64_t bytes) : bytes_(bytes) {}
  ~Landing() { drop(); }
  Landing(const Landing&) = delete;
  Landing& operator=(const Landing&) = delete;

  std::uint64_t size() const { return bytes_; }
  // Where the object's first byte would lie; null while nothing is mapped.
  const std::byte* data() const { return data_.load(std::memory_order_acquire); }

  // Says that all of [start, stop), of which nothing is there yet, is going to be written: it is then taken in large pages where
  // it has whole ones, of memory that was used before if there is some. Its bytes are arbitrary until they are written.
  void expect(std::uint64_t start, std::uint64_t stop);
  // Copies bytes to [offset, offset + bytes.size()) of the object.
  void write(std::uint64_t offset, std::span<const std::byte> bytes);
  // Receives bytes of a connected stream socket to [start, stop) of the object, until all came, the stream ends or breaks, or the
  // time is over. The thread is woken for many bytes at a time, not for every packet.
  Received receive(int socket, std::uint64_t start, std::uint64_t stop, std::chrono::milliseconds most);
  // Gives the pages of [start, stop) back to the system. Both must be multiples of the page size, or stop the object's end.
  void release(std::uint64_t start, std::uint64_t stop);
  // Gives everything back, the address space too.
  void drop();

  // Bytes of the pages that are in memory.
  std::uint64_t resident() const;

 private:
  std::byte* map();
  // Gives the expected frames of [start, stop) to others, as many as they take.
  void give_frames(std::byte* base, std::uint64_t start, std::uint64_t stop);

  std::uint64_t bytes_;
  std::mutex change_;  // of frames_; expect, release and drop are for one thread at a time, so only a fork can find it locked
  std::set<std::uint64_t> frames_;  // offsets of expected large pages
  std::atomic<std::byte*> data_{nullptr};
};

}  // namespace penstock
