#include "core/disk_queue.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <thread>

#include "check.h"
#include "chunk_image.h"

using namespace penstock;

namespace {

Image pattern(std::size_t size) {
  Image made(size);
  for (std::size_t i = 0; i < size; ++i) made[i] = static_cast<std::byte>(i * 31 + i / 256 + i / 65536);
  return made;
}

class Opened {
 public:
  explicit Opened(const std::string& path, int flags = O_RDONLY) : number_(open(path.c_str(), flags | O_CLOEXEC)) {}
  ~Opened() { close(number_); }
  int get() const { return number_; }

 private:
  int number_;
};

// Reads of 1 to 5,000 bytes all over the file.
void read_all_over(DiskQueue& queue, int descriptor, const Image& data, std::size_t count) {
  std::vector<Image> out(count);
  std::vector<DiskRead> reads;
  for (std::size_t i = 0; i < count; ++i) {
    out[i].resize(i * 7919 % 5000 + 1);
    reads.push_back({descriptor, i * 104729 % (data.size() - out[i].size()), out[i].data(), out[i].size()});
  }
  queue.read(reads);
  for (std::size_t i = 0; i < count; ++i) {
    check_equal(reads[i].error, 0);
    check_equal(reads[i].got, reads[i].bytes);
    check(std::equal(out[i].begin(), out[i].end(), data.begin() + static_cast<std::ptrdiff_t>(reads[i].offset)), say(i));
  }
}

void reads_are_done_whatever_their_number(DiskQueue& queue) {
  const ScratchFile scratch("queue-read");
  const Image data = pattern(300'000);
  scratch.fill(data);
  const Opened file(scratch.path());
  for (const std::size_t count : {0, 1, 2, 127, 128, 129, 1000}) read_all_over(queue, file.get(), data, count);
}

void ends_and_errors_are_told_for_each_read(DiskQueue& queue) {
  const ScratchFile scratch("queue-end");
  const Image data = pattern(10'000);
  scratch.fill(data);
  const Opened file(scratch.path());
  const Opened directory("/tmp");
  Image out(4 * 4096);
  std::vector<DiskRead> reads{{file.get(), 8192, out.data(), 4096},          {file.get(), 20'000, out.data() + 4096, 4096},
                              {directory.get(), 0, out.data() + 8192, 4096}, {-1, 0, out.data() + 8192, 4096},
                              {file.get(), 0, out.data() + 12288, 4096},     {file.get(), 0, out.data() + 12288, 0}};
  queue.read(reads);
  check_equal(reads[0].got, std::uint64_t{10'000 - 8192});
  check_equal(reads[0].error, 0);
  check_equal(reads[1].got, std::uint64_t{0});
  check_equal(reads[1].error, 0);
  check_equal(reads[2].error, EISDIR);
  check_equal(reads[3].error, EBADF);
  check_equal(reads[4].got, std::uint64_t{4096});
  check(std::equal(out.begin() + 12288, out.end(), data.begin()), "the good one is read all the same");
  check_equal(reads[5].error, 0);
}

void direct_reads_end_where_the_file_does(DiskQueue& queue) {
  const ScratchFile scratch("queue-direct");
  const Image data = pattern(10'000);
  scratch.fill(data);
  const Opened file(scratch.path(), O_RDONLY | O_DIRECT);
  alignas(4096) static std::byte out[3 * 4096];
  std::vector<DiskRead> reads{{file.get(), 8192, out, 4096, 512}, {file.get(), 0, out + 4096, 8192, 512}};
  queue.read(reads);
  check_equal(reads[0].error, 0);
  check_equal(reads[0].got, std::uint64_t{10'000 - 8192});
  check_equal(reads[1].got, std::uint64_t{8192});
  check(std::equal(out + 4096, out + 3 * 4096, data.begin()), "bytes");
}

// The thread sanitizer ends a forked child that starts threads.
#if defined(__SANITIZE_THREAD__)
constexpr bool kIsThreadSanitized = true;
#else
constexpr bool kIsThreadSanitized = false;
#endif

void threads_and_forks_have_rings_of_their_own(DiskQueue& queue) {
  const ScratchFile scratch("queue-fork");
  const Image data = pattern(300'000);
  scratch.fill(data);
  const Opened file(scratch.path());
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 10; ++k) read_all_over(queue, file.get(), data, 200);
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (kIsThreadSanitized && !queue.has_ring()) return;
  const pid_t child = fork();
  if (child == 0) {
    read_all_over(queue, file.get(), data, 300);
    _exit(num_failures == 0 ? 0 : 1);
  }
  read_all_over(queue, file.get(), data, 300);
  int status = 0;
  waitpid(child, &status, 0);
  check_equal(status, 0);
}

void the_shared_queue_is_gone_with_its_last_user() {
  std::shared_ptr<DiskQueue> one = DiskQueue::shared();
  check(one == DiskQueue::shared(), "there is one");
  const std::weak_ptr<DiskQueue> last = one;
  one.reset();
  check(last.expired(), "it is gone");
}

// A lock that another thread holds during a fork stays locked in the child.
void a_child_of_a_process_that_asks_for_the_queue_gets_one() {
  std::atomic<bool> is_over = false;
  std::thread asking([&] {
    while (!is_over) (void)DiskQueue::shared();
  });
  for (int i = 0; i < 50; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(30);
      _exit(DiskQueue::shared() != nullptr ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    check_equal(status, 0);
    if (status != 0) break;
  }
  is_over = true;
  asking.join();
}

}  // namespace

int main() {
  check(!DiskQueue(DiskWay::threads).has_ring(), "threads are no ring");
  for (const DiskWay way : {DiskWay::any, DiskWay::threads}) {
    DiskQueue queue(way);
    reads_are_done_whatever_their_number(queue);
    ends_and_errors_are_told_for_each_read(queue);
    direct_reads_end_where_the_file_does(queue);
    threads_and_forks_have_rings_of_their_own(queue);
  }
  the_shared_queue_is_gone_with_its_last_user();
  a_child_of_a_process_that_asks_for_the_queue_gets_one();
  return finish();
}
