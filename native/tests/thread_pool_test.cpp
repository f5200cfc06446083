#include "core/thread_pool.h"

#include <sys/wait.h>
#include <unistd.h>

#include <barrier>
#include <cstdint>
#include <filesystem>
#include <latch>
#include <numeric>
#include <optional>
#include <set>
#include <stdexcept>
#include <thread>

#include "check.h"

using namespace penstock;

namespace {

// The thread sanitizer cannot follow a child that starts threads: glibc gives them the ids of the parent's threads, which the
// sanitizer still believes alive ("dup thread with used id", also with die_after_fork=0). Children that start none are tested.
#if defined(__SANITIZE_THREAD__)
constexpr bool kChildMayStartThreads = false;
#else
constexpr bool kChildMayStartThreads = true;
#endif

struct Failure : std::runtime_error {
  explicit Failure(std::size_t number) : std::runtime_error("piece failed"), piece(number) {}
  std::size_t piece;
};

// How often each piece of one job ran.
std::vector<int> times_run(ThreadPool& pool, std::size_t count) {
  std::vector<std::atomic<int>> times(count);
  pool.for_each(count, [&](std::size_t piece) { ++times.at(piece); });
  return {times.begin(), times.end()};
}

bool works(ThreadPool& pool, std::size_t count = 100) { return times_run(pool, count) == std::vector<int>(count, 1); }

std::optional<std::size_t> failed_piece(ThreadPool& pool, std::size_t count, const std::function<void(std::size_t)>& piece) {
  try {
    pool.for_each(count, piece);
  } catch (const Failure& failure) {
    return failure.piece;
  }
  return {};
}

// True if the work returns true in a forked child. The child's alarm kills it if it hangs; _exit leaves alone what belongs to the
// parent.
template <class Work>
bool succeeds_in_a_child(Work work) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    _exit(work() ? 0 : 1);
  }
  int status = -1;
  check(waitpid(child, &status, 0) == child, "waitpid failed");
  if (WIFSIGNALED(status)) check(false, say("the child was killed by signal ", WTERMSIG(status), " (14: it hung)"));
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

void every_piece_runs_exactly_once() {
  for (const std::size_t threads : {1U, 2U, 3U, 4U, 7U}) {
    ThreadPool pool(threads);
    check_equal(pool.size(), threads);
    for (std::size_t count = 0; count <= 70; ++count) {
      check_equal(times_run(pool, count), std::vector<int>(count, 1), say(count, " pieces, ", threads, " threads"));
    }
    for (const std::size_t count : {1000U, 20'000U}) {
      check_equal(times_run(pool, count), std::vector<int>(count, 1), say(count, " pieces, ", threads, " threads"));
    }
  }
}

void a_pool_of_no_threads_is_refused() {
  check_throws<std::invalid_argument>([] { ThreadPool pool(0); });
}

// Each piece waits for all the others, so the job ends only if all run at the same time.
void as_many_pieces_run_at_once_as_there_are_threads() {
  for (const std::size_t threads : {2U, 3U, 5U}) {
    ThreadPool pool(threads);
    std::latch all(static_cast<std::ptrdiff_t>(threads));
    std::vector<std::thread::id> by(threads);
    pool.for_each(threads, [&](std::size_t piece) {
      by[piece] = std::this_thread::get_id();
      all.arrive_and_wait();
    });
    check_equal(std::set(by.begin(), by.end()).size(), threads, "threads at work");
    check(std::find(by.begin(), by.end(), std::this_thread::get_id()) != by.end(), "the calling thread took no piece");
  }
}

void what_pieces_write_is_visible_after_the_job() {
  ThreadPool pool(4);
  for (int repeat = 0; repeat < 200; ++repeat) {
    std::vector<std::size_t> plain(64);  // not atomic: the thread sanitizer sees a missing happens-before
    pool.for_each(plain.size(), [&](std::size_t piece) { plain[piece] = piece + 1; });
    check_equal(std::accumulate(plain.begin(), plain.end(), std::size_t{0}), 64 * 65 / 2);
  }
}

// Piece 0 throws before the others in every second job and after them in the rest.
void the_lowest_failing_piece_is_reported_whichever_throws_first() {
  ThreadPool pool(4);
  for (int repeat = 0; repeat < 200; ++repeat) {
    const bool lowest_first = repeat % 2 == 0;
    std::latch started(4);
    std::latch lowest_throws(1);
    std::latch others_throw(3);
    const auto failed = failed_piece(pool, 4, [&](std::size_t piece) {
      started.arrive_and_wait();
      if (lowest_first && piece != 0) lowest_throws.wait();
      if (!lowest_first && piece == 0) others_throw.wait();
      (piece == 0 ? lowest_throws : others_throw).count_down();
      throw Failure(piece);
    });
    check(failed == 0, say("expected piece 0, found ", failed.value_or(999)));
    check(works(pool), "the pool is of no use after a failure");
  }
}

void a_single_failure_is_reported_from_every_place() {
  for (const std::size_t threads : {1U, 2U, 4U}) {
    ThreadPool pool(threads);
    for (const std::size_t bad : {0U, 1U, 17U, 49U}) {
      const auto failed = failed_piece(pool, 50, [&](std::size_t piece) {
        if (piece == bad) throw Failure(piece);
      });
      check(failed == bad, say("expected piece ", bad, ", found ", failed.value_or(999)));
      check(works(pool), "the pool is of no use after a failure");
    }
    check_throws<std::bad_alloc>([&] { pool.for_each(9, [](std::size_t) { throw std::bad_alloc(); }); });
    check(failed_piece(pool, 1, [](std::size_t piece) { throw Failure(piece); }) == 0, "a job of one piece");
  }
}

void pieces_after_a_failure_are_not_started() {
  ThreadPool alone(1);
  std::size_t started = 0;
  const auto failed = failed_piece(alone, 100, [&](std::size_t piece) {
    if (++started == 5) throw Failure(piece);
  });
  check(failed == 4, say("expected piece 4, found ", failed.value_or(999)));
  check_equal(started, 5);
  ThreadPool pool(3);
  std::atomic<std::size_t> entered{0};
  std::latch all_busy(3);
  failed_piece(pool, 100'000, [&](std::size_t piece) {  // all threads fail at their first piece
    ++entered;
    all_busy.arrive_and_wait();
    throw Failure(piece);
  });
  check_equal(entered.load(), 3, "pieces entered");
}

void several_threads_may_call_at_once() {
  ThreadPool pool(3);
  std::vector<std::thread> callers;
  for (std::size_t caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&pool, caller] {
      for (std::size_t i = 0; i < 200; ++i) {
        const std::size_t count = (i * 7 + caller) % 23;
        check_equal(times_run(pool, count), std::vector<int>(count, 1), say("caller ", caller, " job ", i));
        if (i % 50 == caller) check_throws<Failure>([&] { pool.for_each(5, [](std::size_t piece) { throw Failure(piece); }); });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
}

// A thread that is late for a small job must not take a piece of the large one that follows.
void pieces_of_jobs_that_follow_each_other_are_not_mixed() {
  ThreadPool pool(3);
  std::vector<std::thread> callers;
  for (std::size_t caller = 0; caller < 3; ++caller) {
    callers.emplace_back([&pool] {
      for (int i = 0; i < 4'000; ++i) {
        check_equal(times_run(pool, 2), std::vector<int>(2, 1), "a small job");
        check_equal(times_run(pool, 40), std::vector<int>(40, 1), "a large job");
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
}

void a_caller_that_finds_the_threads_busy_does_its_job_alone() {
  ThreadPool pool(2);
  std::atomic<int> begun{0};
  std::atomic<bool> over{false};
  std::thread first([&] {
    pool.for_each(2, [&](std::size_t) {
      ++begun;
      while (!over) std::this_thread::yield();
    });
  });
  while (begun < 2) std::this_thread::yield();
  const std::thread::id here = std::this_thread::get_id();
  int elsewhere = 0;
  pool.for_each(8, [&](std::size_t) { elsewhere += std::this_thread::get_id() != here; });
  check_equal(elsewhere, 0);
  check_throws<Failure>([&] {
    pool.for_each(8, [](std::size_t i) {
      if (i == 3) throw Failure(3);
    });
  });
  over = true;
  first.join();
}

void a_thread_can_choose_to_work_alone() {
  ThreadPool pool(4);
  std::thread([&] {
    ThreadPool::work_alone();
    const std::thread::id here = std::this_thread::get_id();
    int elsewhere = 0;
    pool.for_each(1000, [&](std::size_t) { elsewhere += std::this_thread::get_id() != here; });
    check_equal(elsewhere, 0);
  }).join();
}

void a_destroyed_pool_leaves_no_thread() {
  const auto num_threads = [] {
    const std::filesystem::directory_iterator tasks("/proc/self/task");
    return std::distance(begin(tasks), end(tasks));
  };
  // The kernel forgets a thread a moment after it is joined: wait for it, up to the alarm.
  const auto wait_until_there_are = [&](std::ptrdiff_t count) {
    while (num_threads() != count) std::this_thread::yield();
  };
  ThreadPool other(2);
  check(works(other), "the first job");
  const std::ptrdiff_t before = num_threads();  // with a pool alive, as a sanitizer adds a thread of its own to the first one
  for (int repeat = 0; repeat < 20; ++repeat) {
    ThreadPool unused(4);
    check_equal(num_threads(), before, "threads, with a pool without a job");
    {
      ThreadPool pool(4);
      pool.for_each(10, [](std::size_t) {});
      check_equal(num_threads(), before + 3, "threads, with a pool after its first job");
    }
    wait_until_there_are(before);
  }
}

void a_forked_child_can_use_the_pool() {
  if (!kChildMayStartThreads) return;
  for (const std::size_t threads : {1U, 2U, 4U}) {
    ThreadPool used(threads);
    ThreadPool fresh(threads);
    check(works(used), "before the fork");
    for (int repeat = 0; repeat < 5; ++repeat) {
      check(succeeds_in_a_child([&] { return works(used) && works(used, 1000) && works(fresh); }), "a child's jobs");
      check(works(used) && works(fresh), "the parent after the fork");
    }
  }
}

void a_grandchild_can_use_the_pool() {
  if (!kChildMayStartThreads) return;
  ThreadPool pool(3);
  check(works(pool), "before the fork");
  check(succeeds_in_a_child([&] { return works(pool) && succeeds_in_a_child([&] { return works(pool); }) && works(pool); }),
        "a grandchild's jobs");
  check(succeeds_in_a_child([&] { return succeeds_in_a_child([&] { return works(pool); }) && works(pool); }),
        "a grandchild whose parent had no job before the fork");
}

void a_forked_child_reports_failures() {
  if (!kChildMayStartThreads) return;
  ThreadPool pool(3);
  check(works(pool), "before the fork");
  check(succeeds_in_a_child([&] {
          return failed_piece(pool, 40,
                              [](std::size_t piece) {
                                if (piece == 7) throw Failure(piece);
                              }) == 7 &&
                 works(pool);
        }),
        "a failure in a child");
}

// The pool's locks are held, or its threads at work, when the child is made.
void a_child_forked_in_the_middle_of_a_job_can_use_the_pool() {
  if (!kChildMayStartThreads) return;
  for (const std::size_t threads : {2U, 4U}) {
    ThreadPool pool(threads);
    std::latch inside(static_cast<std::ptrdiff_t>(threads));
    std::latch release(1);
    std::thread caller([&] {
      pool.for_each(threads, [&](std::size_t) {
        inside.count_down();
        release.wait();
      });
    });
    inside.wait();
    check(succeeds_in_a_child([&] { return works(pool); }), "a job in the child");
    check(succeeds_in_a_child([&] { return works(pool) && works(pool); }), "jobs in a second child");
    release.count_down();
    caller.join();
    check(works(pool), "the parent after the job");
  }
}

void several_threads_of_a_child_may_call_first_at_once() {
  if (!kChildMayStartThreads) return;
  ThreadPool pool(3);
  check(works(pool), "before the fork");
  for (int repeat = 0; repeat < 5; ++repeat) {
    check(succeeds_in_a_child([&] {
            std::atomic<int> good{0};
            std::barrier together(4);
            std::vector<std::thread> callers;
            for (int i = 0; i < 4; ++i) {
              callers.emplace_back([&] {
                together.arrive_and_wait();
                if (works(pool)) ++good;
              });
            }
            for (std::thread& caller : callers) caller.join();
            return good == 4;
          }),
          "four callers in the child");
  }
}

void a_forked_child_can_destroy_the_pool() {
  std::optional<ThreadPool> pool(std::in_place, 3);
  check(works(*pool), "before the fork");
  check(succeeds_in_a_child([&] { return pool.reset(), true; }), "destroying an inherited pool");
  check(works(*pool), "the parent after the fork");
  if (!kChildMayStartThreads) return;
  check(succeeds_in_a_child([&] {
          const bool worked = works(*pool);
          pool.reset();
          return worked;
        }),
        "destroying a pool the child has used");
  check(works(*pool), "the parent after the second fork");
}

void a_child_forked_in_the_middle_of_a_job_can_destroy_the_pool() {
  std::optional<ThreadPool> pool(std::in_place, 2);
  std::latch inside(2);
  std::latch release(1);
  std::thread caller([&] {
    pool->for_each(2, [&](std::size_t) {
      inside.count_down();
      release.wait();
    });
  });
  inside.wait();
  check(succeeds_in_a_child([&] { return pool.reset(), true; }), "destroying a pool with a job");
  release.count_down();
  caller.join();
}

// Counts its own lives, by way of counters that outlive it.
struct Probe {
  struct Counts {
    std::atomic<int> made{0};
    std::atomic<int> ended{0};
  };

  Probe(Counts* its_counts, int its_value) : counts(its_counts), value(its_value) { ++counts->made; }
  ~Probe() { ++counts->ended; }
  Counts* counts;
  int value;
};

void a_fork_local_value_is_made_once_and_ended_with_its_owner() {
  Probe::Counts counts;
  {
    ForkLocal<Probe> local;
    check_equal(counts.made.load(), 0, "made before the first use");
    Probe& first = local.get(&counts, 5);
    check_equal(first.value, 5);
    check(&local.get(&counts, 6) == &first, "expected the same value at the second use");
    check_equal(first.value, 5);
    check_equal(counts.made.load(), 1);
  }
  check_equal(counts.ended.load(), 1);
  { ForkLocal<Probe> never_used; }
  check_equal(counts.made.load(), 1);
}

void threads_that_race_for_a_fork_local_value_get_the_same_one() {
  for (int repeat = 0; repeat < 100; ++repeat) {
    Probe::Counts counts;
    {
      ForkLocal<Probe> local;
      std::vector<Probe*> got(4);
      std::barrier together(4);
      std::vector<std::thread> threads;
      for (std::size_t i = 0; i < 4; ++i) {
        threads.emplace_back([&, i] {
          together.arrive_and_wait();
          got[i] = &local.get(&counts, static_cast<int>(i));
        });
      }
      for (std::thread& thread : threads) thread.join();
      check(got == std::vector<Probe*>(4, got[0]), "expected one value for all threads");
      check_equal(counts.made - counts.ended, 1, "values alive");
    }
    check_equal(counts.made - counts.ended, 0, "values alive after the owner");
  }
}

void a_child_makes_its_own_fork_local_value_and_leaves_the_inherited_one_alone() {
  Probe::Counts counts;
  std::optional<ForkLocal<Probe>> local(std::in_place);
  Probe& of_parent = local->get(&counts, 1);
  check(succeeds_in_a_child([&] {
          Probe& of_child = local->get(&counts, 2);
          const bool fresh = &of_child != &of_parent && of_child.value == 2 && counts.made == 2 && counts.ended == 0;
          local.reset();
          return fresh && counts.ended == 1 && of_parent.value == 1;
        }),
        "a child that uses the value");
  check(succeeds_in_a_child([&] { return local.reset(), counts.ended == 0; }), "a child that does not");
  check(&local->get(&counts, 3) == &of_parent, "the parent keeps its value");
  local.reset();
  check_equal(counts.ended.load(), 1);
}

void a_value_that_cannot_be_made_is_tried_again() {
  struct Picky {
    explicit Picky(bool fail) {
      if (fail) throw Failure(0);
    }
  };
  ForkLocal<Picky> local;
  check_throws<Failure>([&] { local.get(true); });
  check(&local.get(false) == &local.get(true), "expected the value made by the second use");
}

}  // namespace

int main() {
  alarm(120);                           // a hang ends the test
  a_destroyed_pool_leaves_no_thread();  // first, as it counts the threads of the process
  every_piece_runs_exactly_once();
  a_pool_of_no_threads_is_refused();
  as_many_pieces_run_at_once_as_there_are_threads();
  what_pieces_write_is_visible_after_the_job();
  the_lowest_failing_piece_is_reported_whichever_throws_first();
  a_single_failure_is_reported_from_every_place();
  pieces_after_a_failure_are_not_started();
  several_threads_may_call_at_once();
  pieces_of_jobs_that_follow_each_other_are_not_mixed();
  a_caller_that_finds_the_threads_busy_does_its_job_alone();
  a_thread_can_choose_to_work_alone();
  a_forked_child_can_use_the_pool();
  a_grandchild_can_use_the_pool();
  a_forked_child_reports_failures();
  a_child_forked_in_the_middle_of_a_job_can_use_the_pool();
  several_threads_of_a_child_may_call_first_at_once();
  a_forked_child_can_destroy_the_pool();
  a_child_forked_in_the_middle_of_a_job_can_destroy_the_pool();
  a_fork_local_value_is_made_once_and_ended_with_its_owner();
  threads_that_race_for_a_fork_local_value_get_the_same_one();
  a_child_makes_its_own_fork_local_value_and_leaves_the_inherited_one_alone();
  a_value_that_cannot_be_made_is_tried_again();
  return finish();
}
