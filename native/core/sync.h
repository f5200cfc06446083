// The threads, locks and atomics of the thread pool and the batch ring: those of the standard library. A test that explores
// schedules (native/tests/explore.h) is built with its own in their place.
#pragma once

#ifdef PENSTOCK_EXPLORE
#include "tests/explore.h"
#else

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace penstock::sync {

using Mutex = std::mutex;
using Condition = std::condition_variable;
using Thread = std::thread;
template <class T>
using Atomic = std::atomic<T>;

// How often a thread looks for work before it sleeps: see thread_pool.cpp.
constexpr int kSpins = 2'000;

}  // namespace penstock::sync

#endif
