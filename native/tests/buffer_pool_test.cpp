#include "core/buffer_pool.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <thread>

#include "check.h"

using namespace penstock;

namespace {

void a_buffer_is_large_enough_aligned_and_writable() {
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{1}, std::size_t{4095}, std::size_t{4097}, std::size_t{100'000}, std::size_t{5} << 20}) {
    const Buffer buffer = take_buffer(bytes);
    check(buffer.get_deleter().capacity >= bytes, say("room for ", bytes));
    check(buffer.get_deleter().capacity <= std::max<std::size_t>(4096, bytes + bytes / 4 + 1), say("waste at ", bytes));
    check_equal(reinterpret_cast<std::uintptr_t>(buffer.get()) % 64, std::uintptr_t{0}, say("alignment at ", bytes));
    std::memset(buffer.get(), 7, bytes);
  }
}

void what_was_returned_is_used_again() {
  std::byte* const first = take_buffer(300'000).get();
  const Buffer again = take_buffer(299'000);
  check(again.get() == first, "the same memory");
  const Buffer other = take_buffer(300'000);
  check(other.get() != first, "not while it is in use");
}

void the_pool_is_bounded() {
  for (int round = 0; round < 3; ++round) {
    std::vector<Buffer> many;
    for (int i = 0; i < 40; ++i) many.push_back(take_buffer(std::size_t{16} << 20));
    many.clear();
    check(kept_buffer_bytes() <= kept_buffer_limit(), "bytes kept");
  }
  const Buffer largest = take_buffer(kept_buffer_limit() + 1);
}

void large_buffers_are_kept_while_as_much_is_in_use() {
  const std::size_t large = 3 * kept_buffer_limit();
  {
    const Buffer in_use = take_buffer(large);
    std::byte* const first = take_buffer(large).get();
    const Buffer again = take_buffer(large);
    check(again.get() == first, "the same memory");
    check(kept_buffer_bytes() <= kept_buffer_limit(), "it is in use");
  }
  check(kept_buffer_bytes() <= kept_buffer_limit(), "nothing large is kept for nobody");
}

void threads_never_share_a_buffer() {
  std::vector<std::thread> threads;
  for (int number = 0; number < 4; ++number) {
    threads.emplace_back([number] {
      for (int round = 0; round < 2000; ++round) {
        const std::size_t bytes = 4096 + static_cast<std::size_t>(round % 7) * 1000;
        const Buffer buffer = take_buffer(bytes);
        std::memset(buffer.get(), number, bytes);
        std::this_thread::yield();
        for (std::size_t i = 0; i < bytes; i += 509) check(buffer.get()[i] == static_cast<std::byte>(number), "my own bytes");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void a_child_has_a_pool_of_its_own() {
  Buffer ours = take_buffer(50'000);
  const pid_t child = fork();
  if (child == 0) {
    ours.reset();
    const Buffer fresh = take_buffer(50'000);
    _exit(fresh.get() != nullptr ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  check_equal(status, 0, "exit of the child");
}

}  // namespace

int main() {
  a_buffer_is_large_enough_aligned_and_writable();
  what_was_returned_is_used_again();
  the_pool_is_bounded();
  large_buffers_are_kept_while_as_much_is_in_use();
  threads_never_share_a_buffer();
  a_child_has_a_pool_of_its_own();
  return finish();
}
