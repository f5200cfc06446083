#include "core/disk_memory.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <span>
#include <thread>

#include "check.h"

using namespace penstock;

namespace {

void memory_is_large_enough_and_shares_no_page() {
  std::vector<DiskMemory> taken;
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{1}, std::size_t{70'000}, std::size_t{5} << 20, std::size_t{50} << 20}) {
    taken.push_back(take_disk_memory(bytes));
    check(taken.back().get_deleter().bytes >= bytes, say("room for ", bytes));
    check_equal(reinterpret_cast<std::uintptr_t>(taken.back().get()) % (64 << 10), std::uintptr_t{0}, say("start of ", bytes));
    std::memset(taken.back().get(), static_cast<int>(taken.size()), taken.back().get_deleter().bytes);
  }
  for (std::size_t i = 0; i < taken.size(); ++i) {
    const std::span<const std::byte> all(taken[i].get(), taken[i].get_deleter().bytes);
    const auto is_ours = [=](std::byte one) { return one == static_cast<std::byte>(i + 1); };
    check(std::all_of(all.begin(), all.end(), is_ours), say("bytes of number ", i));
  }
}

void what_was_given_back_is_used_again() {
  const DiskMemory before = take_disk_memory(100'000);
  std::byte* const first = take_disk_memory(300'000).get();
  const DiskMemory again = take_disk_memory(250'000);
  check(again.get() == first, "the same memory");
  const DiskMemory other = take_disk_memory(300'000);
  check(other.get() != first, "not while it is in use");
}

void holes_are_filled() {
  std::vector<DiskMemory> taken;
  for (int i = 0; i < 100; ++i) taken.push_back(take_disk_memory(1 << 20));
  const std::size_t most = disk_memory_bytes();
  for (int round = 0; round < 20; ++round) {
    for (std::size_t i = static_cast<std::size_t>(round % 3); i < taken.size(); i += 3) taken[i].reset();
    for (DiskMemory& one : taken) {
      if (one == nullptr) one = take_disk_memory(1 << 20);
    }
  }
  check_equal(disk_memory_bytes(), most);
}

void little_is_kept() {
  for (int round = 0; round < 3; ++round) {
    std::vector<DiskMemory> many;
    for (std::size_t i = 0; i < 60; ++i) many.push_back(take_disk_memory((i % 7 + 1) << 20));
    many.push_back(take_disk_memory(kept_disk_memory() + 1));
    check(disk_memory_bytes() > 200'000'000, "it is all there");
    many.clear();
    check(disk_memory_bytes() <= kept_disk_memory(), say("kept: ", disk_memory_bytes()));
  }
}

void threads_never_share_memory() {
  std::vector<std::thread> threads;
  for (int number = 0; number < 4; ++number) {
    threads.emplace_back([number] {
      for (int round = 0; round < 500; ++round) {
        const std::size_t bytes = 64'000 + static_cast<std::size_t>(round % 7) * 100'000;
        const DiskMemory memory = take_disk_memory(bytes);
        std::memset(memory.get(), number, bytes);
        std::this_thread::yield();
        for (std::size_t i = 0; i < bytes; i += 4093) check(memory.get()[i] == static_cast<std::byte>(number), "my own bytes");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void a_child_has_memory_of_its_own() {
  DiskMemory ours = take_disk_memory(50'000);
  std::memset(ours.get(), 3, 50'000);
  const pid_t child = fork();
  if (child == 0) {
    const DiskMemory fresh = take_disk_memory(50'000);  // may be where the parent's is in the parent
    std::memset(fresh.get(), 4, 50'000);
    ours.reset();
    const DiskMemory other = take_disk_memory(50'000);
    _exit(other.get() != fresh.get() ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  check_equal(status, 0);
  for (std::size_t i = 0; i < 50'000; ++i) check(ours.get()[i] == std::byte{3}, "the parent's bytes");
}

}  // namespace

int main() {
  memory_is_large_enough_and_shares_no_page();
  what_was_given_back_is_used_again();
  holes_are_filled();
  little_is_kept();
  threads_never_share_memory();
  a_child_has_memory_of_its_own();
  return finish();
}
