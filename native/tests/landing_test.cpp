#include "core/landing.h"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <thread>

#include "check.h"
#include "core/error.h"
#include "core/spare_frames.h"

using namespace penstock;

namespace {

const auto kPage = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
constexpr std::uint64_t kHuge = std::uint64_t{40} << 30;

std::vector<std::byte> filled(std::uint64_t bytes, int value) {
  return std::vector<std::byte>(bytes, static_cast<std::byte>(value));
}

bool holds(const Landing& landing, std::uint64_t start, std::uint64_t stop, int value) {
  return std::all_of(landing.data() + start, landing.data() + stop,
                     [=](std::byte b) { return b == static_cast<std::byte>(value); });
}

void many_large_ones_cost_nothing() {
  std::vector<std::unique_ptr<Landing>> landings;  // together 400 TB
  for (int i = 0; i < 10'000; ++i) landings.push_back(std::make_unique<Landing>(kHuge));
  for (const auto& landing : landings) {
    check(landing->data() == nullptr, "nothing is mapped before the first write");
    check_equal(landing->resident(), 0U);
  }
}

void what_was_written_is_there_and_nothing_else_takes_memory() {
  Landing landing(kHuge);
  landing.write(kHuge - 5, filled(5, 7));
  landing.write(kPage - 1, filled(2, 9));
  check(holds(landing, kHuge - 5, kHuge, 7), "the end");
  check(holds(landing, kPage - 1, kPage + 1, 9), "across pages");
  check(holds(landing, 0, kPage - 1, 0), "the rest of a page");
  check_equal(landing.resident(), 3 * kPage);
}

void writes_outside_the_object_are_refused() {
  Landing landing(100);
  const std::vector<std::byte> some = filled(8, 1);
  for (const std::uint64_t offset :
       {std::uint64_t{93}, std::uint64_t{100}, std::uint64_t{101}, ~std::uint64_t{0}, ~std::uint64_t{6}}) {
    check_throws<std::invalid_argument>([&] { landing.write(offset, some); });
  }
  check(landing.data() == nullptr, "a refused write maps nothing");
  landing.write(100, {});
  check(landing.data() == nullptr, "an empty write maps nothing");
  landing.write(92, some);
  Landing empty(0);
  empty.write(0, {});
  empty.release(0, 0);
  check_throws<std::invalid_argument>([&] { empty.write(0, some); });
}

void an_object_larger_than_the_address_space_is_an_error() {
  Landing landing(std::uint64_t{1} << 62);
  check_throws<SystemError>([&] { landing.write(0, filled(1, 1)); });
  check(landing.data() == nullptr, "nothing is mapped");
}

void released_pages_are_given_back() {
  Landing landing(10 * kPage + 3);
  landing.release(0, kPage);  // nothing is mapped: nothing to do
  landing.write(0, filled(landing.size(), 5));
  check_equal(landing.resident(), 11 * kPage);
  landing.release(2 * kPage, 4 * kPage);
  check_equal(landing.resident(), 9 * kPage);
  landing.release(10 * kPage, landing.size());
  landing.release(3 * kPage, 3 * kPage);
  check_equal(landing.resident(), 8 * kPage);
  check(holds(landing, 0, 2 * kPage, 5) && holds(landing, 4 * kPage, 10 * kPage, 5), "the neighbours are untouched");
  check(holds(landing, 2 * kPage, 4 * kPage, 0) && holds(landing, 10 * kPage, landing.size(), 0), "what was released is zero");
  landing.write(2 * kPage, filled(kPage, 6));
  check(holds(landing, 2 * kPage, 3 * kPage, 6), "written again");
  using Range = std::array<std::uint64_t, 2>;
  for (const auto& [start, stop] : {Range{1, kPage}, Range{0, 1}, Range{kPage, 0}, Range{0, 11 * kPage},
                                    Range{0, landing.size() - 1}, Range{~std::uint64_t{0} - kPage + 1, ~std::uint64_t{0}}}) {
    check_throws<std::invalid_argument>([&] { landing.release(start, stop); });
  }
}

void a_dropped_one_begins_anew() {
  Landing landing(3 * kPage);
  landing.drop();
  for (int turn = 1; turn < 4; ++turn) {
    landing.write(kPage, filled(kPage, turn));
    check(holds(landing, 0, kPage, 0) && holds(landing, kPage, 2 * kPage, turn), "only what was written since");
    landing.drop();
    check(landing.data() == nullptr && landing.resident() == 0, "nothing is mapped");
  }
}

// All threads make the first write together; then each fills, checks and releases ranges of its own, next to one that stays.
void threads_use_different_ranges() {
  constexpr std::uint64_t kThreads = 4;
  for (int turn = 0; turn < 20; ++turn) {
    Landing landing((kThreads + 1) * 8 * kPage);
    std::vector<std::thread> threads;
    for (std::uint64_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        const std::uint64_t start = t * 8 * kPage;
        for (int i = 1; i < 20; ++i) {
          landing.write(start, filled(8 * kPage, i));
          check(holds(landing, start, start + 8 * kPage, i), "a thread's own range");
          landing.release(start, start + 4 * kPage);
          check(holds(landing, start + 4 * kPage, start + 8 * kPage, i), "what the thread keeps");
        }
      });
    }
    landing.write(kThreads * 8 * kPage, filled(8 * kPage, 77));
    for (int i = 0; i < 20; ++i) check(holds(landing, kThreads * 8 * kPage, landing.size(), 77), "the range that stays");
    for (std::thread& thread : threads) thread.join();
    check_equal(landing.resident(), (kThreads * 4 + 8) * kPage);
  }
}

void a_forked_child_has_a_copy() {
  Landing landing(4 * kPage);
  landing.write(0, filled(4 * kPage, 3));
  const pid_t child = fork();
  if (child == 0) {
    bool right = holds(landing, 0, 4 * kPage, 3);
    landing.write(0, filled(kPage, 4));
    right &= holds(landing, 0, kPage, 4);
    landing.drop();
    _exit(right ? 0 : 1);
  }
  int status = -1;
  check(waitpid(child, &status, 0) == child && status == 0, "the child reads what the parent wrote");
  check(holds(landing, 0, 4 * kPage, 3), "the parent keeps what it wrote");
}

}  // namespace

void expected_ranges_hold_what_is_written_and_nothing_else_takes_memory() {
  constexpr std::uint64_t kFrame = kFrameBytes;
  for (int turn = 1; turn < 4; ++turn) {  // from the second turn on, with memory of the turn before
    Landing landing(kHuge);
    landing.expect(0, kPage);  // too small for a large page: nothing happens
    check(landing.data() == nullptr, "nothing is mapped");
    landing.expect(kPage, 5 * kFrame + kPage);
    const std::vector<std::byte> part = filled(5 * kFrame, turn);
    landing.write(kPage, part);
    check(holds(landing, kPage, 5 * kFrame + kPage, turn), "all of it");
    check(holds(landing, 0, kPage, 0), "the page before");
    check_equal(landing.resident(), 5 * kFrame + 2 * kPage - kPage);
    landing.release(kPage, 3 * kFrame);
    check(holds(landing, 3 * kFrame, 5 * kFrame + kPage, turn), "what was not released");
    check(landing.resident() <= 2 * kFrame + 2 * kPage, "given back");
    check(holds(landing, kPage, 3 * kFrame, 0), "zeros where it was released");
  }
  Landing small(100);
  check_throws<std::invalid_argument>([&] { small.expect(0, 101); });
  check_throws<std::invalid_argument>([&] { small.expect(5, 4); });
}

void bytes_of_a_socket_land_in_their_place() {
  using std::chrono::milliseconds;
  constexpr std::uint64_t kBytes = 3'000'000;  // more than a socket holds: the thread waits in between
  std::array<int, 2> pair{};
  check(socketpair(AF_UNIX, SOCK_STREAM, 0, pair.data()) == 0, "sockets");
  Landing landing(2 * kBytes);
  check_throws<std::invalid_argument>([&] { landing.receive(pair[0], 1, 2 * kBytes + 1, milliseconds(0)); });
  check_throws<std::invalid_argument>([&] { landing.receive(pair[0], 2, 1, milliseconds(0)); });
  Received got = landing.receive(pair[0], 5, 5, milliseconds(0));
  check(got.bytes == 0 && got.is_open && landing.data() == nullptr, "an empty range maps nothing");
  got = landing.receive(pair[0], 5, 9, milliseconds(1));
  check(got.bytes == 0 && got.is_open, "nothing came in time");
  std::thread sender([&] {
    const std::vector<std::byte> sent = filled(kBytes + 7, 9);
    for (std::size_t at = 0; at < sent.size();)
      at += static_cast<std::size_t>(std::max<ssize_t>(0, write(pair[1], &sent[at], sent.size() - at)));
    close(pair[1]);
  });
  std::uint64_t at = 11;
  while (at < 11 + kBytes) at += landing.receive(pair[0], at, 11 + kBytes, milliseconds(5)).bytes;
  check(holds(landing, 11, 11 + kBytes, 9) && holds(landing, 0, 11, 0), "all of it, and nothing before");
  check(holds(landing, 11 + kBytes, 2 * kBytes, 0), "and nothing behind");
  got = landing.receive(pair[0], 0, 100, milliseconds(10'000));
  check(got.bytes == 7 && !got.is_open && holds(landing, 0, 7, 9), "the end of the stream");
  sender.join();
  close(pair[0]);
  got = landing.receive(pair[0], 0, 100, milliseconds(10'000));
  check(got.bytes == 0 && !got.is_open, "a socket that is no more");
}

void threads_pass_frames_on() {
  constexpr std::uint64_t kBytes = 6 * kFrameBytes;
  std::vector<std::thread> threads;
  for (int value = 1; value <= 4; ++value) {
    threads.emplace_back([=] {
      for (int turn = 0; turn < 25; ++turn) {
        Landing landing(kBytes);
        landing.expect(0, kBytes);
        landing.write(0, filled(kBytes, value));
        check(holds(landing, 0, kBytes, value), "no other thread writes here");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

int main() {
  expected_ranges_hold_what_is_written_and_nothing_else_takes_memory();
  bytes_of_a_socket_land_in_their_place();
  threads_pass_frames_on();
  many_large_ones_cost_nothing();
  what_was_written_is_there_and_nothing_else_takes_memory();
  writes_outside_the_object_are_refused();
  an_object_larger_than_the_address_space_is_an_error();
  released_pages_are_given_back();
  a_dropped_one_begins_anew();
  threads_use_different_ranges();
  a_forked_child_has_a_copy();
  return finish();
}
