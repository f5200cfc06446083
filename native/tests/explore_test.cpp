// Schedules of the thread pool and the batch ring: all with few preemptions, and many by lot.
//
//   explore_test                          a sample of every subject
//   explore_test N                        up to N schedules of every subject and way
//   explore_test SUBJECT 0,0,1,...        one schedule again
//
// A wrong schedule is printed as the list of its decisions.
#include "tests/explore.h"

#include <iostream>
#include <map>
#include <numeric>
#include <random>
#include <sstream>
#include <stdexcept>

#include "core/batch_ring.h"
#include "core/thread_pool.h"

using namespace penstock;
using explore::expect;

namespace {

// What is run

void check_job(ThreadPool& pool, std::size_t count) {
  std::vector<int> times(count);
  pool.for_each(count, [&](std::size_t piece) { ++times[piece]; });
  for (const int one : times) expect(one == 1, "a piece was not done exactly once when for_each returned");
}

void pool_of_two() {
  ThreadPool pool(2);
  check_job(pool, 2);
  check_job(pool, 3);
}

void pool_of_three() {
  ThreadPool pool(3);
  check_job(pool, 3);
  check_job(pool, 2);
}

void pool_of_two_callers() {
  ThreadPool pool(2);
  check_job(pool, 2);
  sync::Thread other([&] { check_job(pool, 2); });
  check_job(pool, 2);
  other.join();
}

void pool_with_failures() {
  ThreadPool pool(2);
  std::size_t found = 99;
  std::vector<int> failed(3);
  try {
    pool.for_each(3, [&](std::size_t piece) {
      if (piece == 0) return;
      failed[piece] = 1;
      throw std::out_of_range(std::to_string(piece));
    });
  } catch (const std::out_of_range& error) {
    found = std::stoul(error.what());
  }
  expect(found == (failed[1] != 0 ? 1U : 2U), "not the exception of the lowest piece that threw");
  check_job(pool, 2);
}

// Each record is a piece of its own, with `work` enough.
RingField numbers(bool fails = false) {
  const RingFill fill = [fails](const RingRead& read) {
    for (std::size_t i = 0; i < read.ids.size(); ++i) {
      if (fails && read.ids[i] % 10 == 1) throw std::out_of_range(std::to_string(read.ids[i]));
      std::memcpy(read.out + read.places[i] * 8, &read.ids[i], 8);
    }
  };
  return {8, {fill}, nullptr, 256 << 10};
}

RingPicks picks(std::int64_t first, std::size_t count) {
  RingPicks made;
  made.ids.resize(count);
  std::iota(made.ids.begin(), made.ids.end(), first);
  return made;
}

void check_batch(BatchRing& ring, std::int64_t first, std::size_t count) {
  const std::unique_ptr<RingBatch> batch = ring.take(1000);
  expect(batch != nullptr, "no batch came");
  expect(batch->error == nullptr, "a batch failed");
  expect(batch->picks.ids.size() == count && batch->picks.ids[0] == first, "batches came in another order");
  for (std::size_t i = 0; i < count; ++i) {
    std::int64_t found = 0;
    std::memcpy(&found, batch->values[0].get() + i * 8, 8);
    expect(found == first + static_cast<std::int64_t>(i), "a batch was taken before its records were read");
  }
}

void ring_of(std::size_t threads) {
  BatchRing ring({numbers()}, threads);
  ring.put(picks(0, 2));
  ring.put(picks(10, 1));
  check_batch(ring, 0, 2);
  ring.put(picks(20, 2));
  check_batch(ring, 10, 1);
  check_batch(ring, 20, 2);
}

void ring_of_one() { ring_of(1); }
void ring_of_two() { ring_of(2); }
void ring_of_three() { ring_of(3); }

void ring_with_failures() {
  BatchRing ring({numbers(true)}, 3);
  ring.put(picks(0, 3));
  ring.put(picks(2, 2));
  const std::unique_ptr<RingBatch> batch = ring.take(1000);
  expect(batch != nullptr && batch->error != nullptr, "an error was lost");
  check_batch(ring, 2, 2);
}

void ring_closed_early() {
  BatchRing ring({numbers()}, 3);
  ring.put(picks(0, 2));
  ring.put(picks(10, 2));
  check_batch(ring, 0, 2);
}

class Texts : public VaryingReader {
 public:
  void sizes(std::span<const std::int64_t> rows, std::uint8_t, std::int64_t* sizes, std::uint32_t*) const override {
    for (std::size_t i = 0; i < rows.size(); ++i) sizes[i] = 8;
  }
  void read(std::span<const std::int64_t> rows, const std::int64_t* starts, const std::int64_t*, std::byte* out) const override {
    for (std::size_t i = 0; i < rows.size(); ++i) std::memcpy(out + starts[i], &rows[i], 8);
  }
  void read_parts(std::span<const RecordPart>, std::byte*) const override {}
  std::uint64_t batch_bytes() const override { return 1 << 20; }
};

void check_texts(BatchRing& ring, std::int64_t first) {
  const std::unique_ptr<RingBatch> batch = ring.take(1000);
  expect(batch != nullptr && batch->error == nullptr && batch->varying.size() == 1, "no batch of texts came");
  std::int64_t found = -1;
  std::memcpy(&found, batch->varying[0].values.get(), 8);
  expect(found == first, "a text was taken before it was read");
}

void ring_of_texts(std::size_t threads) {
  const Texts texts;
  BatchRing ring({}, {{1, 0, {&texts}}}, threads, {1, 8});  // room for one
  ring.put(picks(0, 1));
  ring.put(picks(10, 1));
  check_texts(ring, 0);
  ring.put(picks(20, 1));
  check_texts(ring, 10);
  check_texts(ring, 20);
}

void ring_of_texts_of_one() { ring_of_texts(1); }
void ring_of_texts_of_two() { ring_of_texts(2); }
void ring_of_texts_of_three() { ring_of_texts(3); }

const std::map<std::string, void (*)()> kSubjects{
    {"pool-2", pool_of_two},
    {"pool-3", pool_of_three},
    {"pool-2-callers", pool_of_two_callers},
    {"pool-failures", pool_with_failures},
    {"ring-1", ring_of_one},
    {"ring-2", ring_of_two},
    {"ring-3", ring_of_three},
    {"ring-failures", ring_with_failures},
    {"ring-closed", ring_closed_early},
    {"ring-texts-1", ring_of_texts_of_one},
    {"ring-texts-2", ring_of_texts_of_two},
    {"ring-texts-3", ring_of_texts_of_three},
};

// Which schedules

// Depth first: every schedule in which a thread that can go on is preempted at most `bound` times.
class DepthFirst : public explore::Chooser {
 public:
  explicit DepthFirst(int bound) : bound_(bound) {}
  void begin() { depth_ = 0, left_ = bound_; }
  bool advance() {
    while (!taken_.empty() && taken_.back() + 1 == counts_.back()) taken_.pop_back(), counts_.pop_back();
    if (taken_.empty()) return false;
    ++taken_.back();
    return true;
  }
  std::size_t choose(const std::vector<std::size_t>& options, bool has_current) override {
    const std::size_t count = has_current && left_ == 0 ? 1 : options.size();
    if (depth_ == taken_.size()) taken_.push_back(0), counts_.push_back(count);
    const std::size_t number = taken_[depth_++];
    left_ -= has_current && number > 0;
    return number;
  }
  const std::vector<std::size_t>& schedule() const { return taken_; }

 private:
  int bound_;
  int left_ = 0;
  std::size_t depth_ = 0;
  std::vector<std::size_t> taken_;
  std::vector<std::size_t> counts_;
};

// By lot: probabilistic concurrency testing (Burckhardt and others, 2010). The thread of the highest priority goes on; at a few
// steps drawn before, the priority of the thread that goes on drops below all others. Every other schedule is drawn evenly
// instead.
class Drawn : public explore::Chooser {
 public:
  explicit Drawn(std::uint64_t seed) : random_(seed), even_(seed % 2 == 0) {
    for (std::size_t& change : changes_) change = random_() % 150;
  }
  std::size_t choose(const std::vector<std::size_t>& options, bool) override {
    std::size_t number = 0;
    if (even_) {
      number = random_() % options.size();
    } else {
      for (const std::size_t thread : options)
        while (priorities_.size() <= thread) priorities_.push_back(static_cast<std::int64_t>(random_() >> 2));
      const auto highest = [&] {
        return static_cast<std::size_t>(
            std::max_element(options.begin(), options.end(),
                             [&](std::size_t a, std::size_t b) { return priorities_[a] < priorities_[b]; }) -
            options.begin());
      };
      number = highest();
      if (std::find(std::begin(changes_), std::end(changes_), schedule_.size()) != std::end(changes_)) {
        priorities_[options[number]] = -static_cast<std::int64_t>(schedule_.size());
        number = highest();
      }
    }
    schedule_.push_back(number);
    return number;
  }
  const std::vector<std::size_t>& schedule() const { return schedule_; }

 private:
  std::mt19937_64 random_;
  bool even_;
  std::size_t changes_[3];
  std::vector<std::int64_t> priorities_;
  std::vector<std::size_t> schedule_;
};

class Given : public explore::Chooser {
 public:
  explicit Given(std::vector<std::size_t> schedule) : schedule_(std::move(schedule)) {}
  std::size_t choose(const std::vector<std::size_t>& options, bool) override {
    return depth_ < schedule_.size() ? std::min(schedule_[depth_++], options.size() - 1) : 0;
  }

 private:
  std::vector<std::size_t> schedule_;
  std::size_t depth_ = 0;
};

std::uint64_t num_schedules = 0;
int num_wrong = 0;

void report(const std::string& subject, const std::string& wrong, const std::vector<std::size_t>& schedule) {
  ++num_wrong;
  std::cout << "WRONG " << subject << ": " << wrong << "\n  explore_test " << subject << ' ';
  for (std::size_t i = 0; i < schedule.size(); ++i) std::cout << (i == 0 ? "" : ",") << schedule[i];
  std::cout << std::endl;
}

void explore_all(const std::string& name, void (*subject)(), int bound, std::uint64_t most) {
  explore::Scheduler scheduler;
  DepthFirst chooser(bound);
  std::uint64_t count = 0;
  bool more = true;
  for (; more && count < most; ++count) {
    chooser.begin();
    const std::string wrong = scheduler.run(subject, chooser);
    if (!wrong.empty()) return report(name, wrong, chooser.schedule());
    more = chooser.advance();
  }
  num_schedules += count;
  std::cout << name << ": " << count << (more ? " of the" : ", all") << " schedules with at most " << bound << " preemptions"
            << std::endl;
}

void explore_drawn(const std::string& name, void (*subject)(), std::uint64_t most) {
  explore::Scheduler scheduler;
  for (std::uint64_t seed = 0; seed < most; ++seed) {
    Drawn chooser(seed);
    const std::string wrong = scheduler.run(subject, chooser);
    if (!wrong.empty()) return report(name, wrong, chooser.schedule());
  }
  num_schedules += most;
  std::cout << name << ": " << most << " schedules by lot" << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3) {
    std::vector<std::size_t> schedule;
    std::istringstream text(argv[2]);
    for (std::string number; std::getline(text, number, ',');) schedule.push_back(std::stoul(number));
    Given chooser(schedule);
    const std::string wrong = explore::Scheduler().run(kSubjects.at(argv[1]), chooser);
    std::cout << (wrong.empty() ? "nothing is wrong" : wrong) << std::endl;
    return wrong.empty() ? 0 : 1;
  }
  const std::uint64_t most = argc == 2 ? std::stoull(argv[1]) : 2000;
  for (const auto& [name, subject] : kSubjects) {
    explore_all(name, subject, 1, most);
    explore_all(name, subject, 2, most);
    explore_drawn(name, subject, most);
  }
  std::cout << num_schedules << " schedules, " << num_wrong << " wrong" << std::endl;
  return num_wrong == 0 ? 0 : 1;
}
