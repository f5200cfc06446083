#include "core/read_ahead.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "chunk_image.h"

using namespace penstock;

namespace {

constexpr std::size_t kBytes = 3'000'001;

Image pattern(std::size_t size) {
  Image made(size);
  for (std::size_t i = 0; i < size; ++i) made[i] = static_cast<std::byte>(i * 31 + i / 256 + i / 65536);
  return made;
}

bool is_right(const Stage::Want& want, const Image& data) {
  return std::equal(want.at, want.at + want.bytes, data.begin() + static_cast<std::ptrdiff_t>(want.offset));
}

// Runs of many sizes, of which some touch each other and some are the same.
std::vector<Stage::Want> wants_of(const File& file, std::size_t seed) {
  std::vector<Stage::Want> wants;
  for (std::size_t i = 0; i < 200; ++i) {
    const std::uint64_t bytes = (i * 7919 + seed) % 20'000;
    wants.push_back({&file, (i * 104729 + seed * 31) % (kBytes - bytes), bytes});
    if (i % 5 == 0)
      wants.push_back({&file, wants.back().offset + bytes, std::min<std::uint64_t>(100, kBytes - wants.back().offset - bytes)});
    if (i % 7 == 0) wants.push_back(wants.back());
  }
  wants.push_back({&file, 0, kBytes});
  return wants;
}

void bytes_are_the_same_with_and_without_reading_ahead() {
  const ScratchFile scratch("ahead-same");
  const Image data = pattern(kBytes);
  scratch.fill(data);
  const auto file = File::open(scratch.path(), kBytes, FileAccess::direct);
  check(file->is_direct(), "it is read directly");
  ReadAhead ahead(1 << 30);
  Stage stage;
  for (std::size_t turn = 0; turn < 6; ++turn) {
    if (turn % 2 == 1) {
      for (std::uint64_t low = turn; low < kBytes; low += 300'000) {
        ahead.fetch(scratch.path(), low, std::min<std::uint64_t>(kBytes, low + 250'000));
      }
    }
    std::vector<Stage::Want> wants = wants_of(*file, turn);
    stage.bring(wants);
    for (const Stage::Want& want : wants) check(is_right(want, data), say("turn ", turn, ", offset ", want.offset));
  }
}

void extents_are_dropped_when_all_of_them_was_used() {
  const ScratchFile scratch("ahead-used");
  const Image data = pattern(kBytes);
  scratch.fill(data);
  const auto file = File::open(scratch.path(), kBytes, FileAccess::direct);
  ReadAhead ahead(1 << 30);
  ahead.fetch(scratch.path(), 1000, 201'000);
  ahead.fetch(scratch.path(), 201'000, 301'000);
  ahead.wait();
  check_equal(ahead.size(), std::uint64_t{300'000});
  Image out(1000);
  for (std::uint64_t at = 1000; at < 201'000; at += 1000) {
    file->read(at, out);
    check(std::equal(out.begin(), out.end(), data.begin() + static_cast<std::ptrdiff_t>(at)), "bytes");
  }
  check_equal(ahead.size(), std::uint64_t{100'000});
  ahead.fetch(scratch.path(), 201'000, 301'000);  // for another epoch: it is used twice
  for (int turn = 0; turn < 2; ++turn) {
    check_equal(ahead.size(), std::uint64_t{100'000});
    for (std::uint64_t at = 201'000; at < 301'000; at += 1000) file->read(at, out);
  }
  check_equal(ahead.size(), std::uint64_t{0});
}

void the_oldest_are_dropped_when_there_are_too_many() {
  const ScratchFile scratch("ahead-room");
  scratch.fill(pattern(kBytes));
  ReadAhead ahead(500'000);
  for (std::uint64_t low = 0; low + 100'000 < kBytes; low += 100'000) ahead.fetch(scratch.path(), low, low + 100'000);
  ahead.wait();
  check_equal(ahead.size(), std::uint64_t{500'000});
  ahead.close();
  ahead.close();
  check_equal(ahead.size(), std::uint64_t{0});
  ahead.fetch(scratch.path(), 0, 1000);
  check_equal(ahead.size(), std::uint64_t{0});
}

void extents_wait_for_their_step() {
  const ScratchFile scratch("ahead-step");
  scratch.fill(pattern(kBytes));
  ReadAhead ahead(1 << 30);
  ahead.fetch(scratch.path(), 0, 1000, 3);
  ahead.fetch(scratch.path(), 1000, 3000, 3);
  ahead.fetch(scratch.path(), 3000, 7000, 8);
  check_equal(ahead.size(), std::uint64_t{0});
  ahead.passed(2);
  check_equal(ahead.size(), std::uint64_t{0});
  ahead.passed(7);
  check_equal(ahead.size(), std::uint64_t{3000});
  ahead.fetch(scratch.path(), 7000, 7001, 5);  // behind the one of step 8
  ahead.passed(4);                             // told late
  check_equal(ahead.size(), std::uint64_t{3000});
  ahead.passed(8);
  ahead.wait();
  check_equal(ahead.size(), std::uint64_t{7001});
}

void what_cannot_be_read_is_left_to_those_who_need_it() {
  const ScratchFile scratch("ahead-bad");
  scratch.fill(pattern(kBytes));
  ReadAhead ahead(1 << 30);
  ahead.fetch("/none/such", 0, 10);
  ahead.fetch("/tmp", 0, 10);
  ahead.fetch(scratch.path(), 0, kBytes + 1);
  ahead.fetch(scratch.path(), 10, 10);
  ahead.wait();
  check_equal(ahead.size(), std::uint64_t{0});
}

void a_file_that_was_cut_or_changed_is_an_error_although_its_bytes_are_here() {
  const ScratchFile scratch("ahead-cut");
  const Image data = pattern(kBytes);
  for (const bool is_cut : {false, true}) {
    scratch.fill(data);
    const auto file = File::open(scratch.path(), kBytes, FileAccess::direct);
    ReadAhead ahead(1 << 30);
    ahead.fetch(scratch.path(), 0, 100'000);
    ahead.wait();
    Stage stage;
    Stage::Want want{file.get(), 5, 1000};
    stage.bring({&want, 1});
    file->need_unwritten();
    check(is_right(want, data), "it was read ahead");
    if (is_cut) {
      check_equal(truncate(scratch.path().c_str(), 2000), 0);
      check_throws<TruncatedError>([&] { file->need_unwritten(); });
      Stage::Want beyond{file.get(), 1'000'000, 1000};
      check_throws<TruncatedError>([&] { stage.bring({&beyond, 1}); });
    } else {
      Image other = data;
      other[7] ^= std::byte{1};
      const int descriptor = open(scratch.path().c_str(), O_WRONLY);
      check_equal(pwrite(descriptor, other.data(), other.size(), 0), static_cast<ssize_t>(other.size()));
      const timespec times[2] = {{1, 0}, {1, 0}};
      futimens(descriptor, times);
      close(descriptor);
      check_throws<ChangedError>([&] { file->need_unwritten(); });
      // Of the new version nothing was read ahead.
      const auto now = File::open(scratch.path(), kBytes, FileAccess::direct);
      Stage::Want fresh{now.get(), 5, 1000};
      stage.bring({&fresh, 1});
      check(is_right(fresh, other), "the new bytes");
    }
  }
}

void a_file_that_got_its_old_time_back_is_read_again() {
  const ScratchFile scratch("ahead-time");
  const Image data = pattern(kBytes);
  scratch.fill(data);
  const auto before = File::open(scratch.path(), kBytes, FileAccess::direct);  // keeps what was read ahead of it
  ReadAhead ahead(1 << 30);
  ahead.fetch(scratch.path(), 0, kBytes);
  ahead.wait();
  Image other = data;
  for (std::byte& byte : other) byte ^= std::byte{1};
  struct stat info = {};
  const int descriptor = open(scratch.path().c_str(), O_WRONLY);
  check_equal(fstat(descriptor, &info), 0);
  usleep(20'000);  // times of files are as exact as the clock of the system
  check_equal(pwrite(descriptor, other.data(), other.size(), 0), static_cast<ssize_t>(other.size()));
  const timespec times[2] = {info.st_atim, info.st_mtim};
  check_equal(futimens(descriptor, times), 0);
  close(descriptor);
  const auto file = File::open(scratch.path(), kBytes, FileAccess::direct);
  Image out(100'000);
  file->read(5000, out);
  check(std::equal(out.begin(), out.end(), other.begin() + 5000), "the bytes of now");
}

void no_two_reads_share_a_page_of_memory() {
  const ScratchFile scratch("ahead-pages");
  const Image data = pattern(kBytes);
  scratch.fill(data);
  const auto file = File::open(scratch.path(), kBytes, FileAccess::direct);
  const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  std::vector<Stage::Want> wants;
  for (std::uint64_t i = 0; i < 100; ++i) wants.push_back({file.get(), 20'000 * ((i * 37) % 100), 512});
  Stage stage;
  stage.bring(wants);
  std::vector<std::uint64_t> pages;
  for (const Stage::Want& want : wants) {
    check(is_right(want, data), say("offset ", want.offset));
    const auto first = reinterpret_cast<std::uint64_t>(want.at) / page;
    const auto last = (reinterpret_cast<std::uint64_t>(want.at) + want.bytes - 1) / page;
    for (std::uint64_t one = first; one <= last; ++one) pages.push_back(one);
  }
  std::sort(pages.begin(), pages.end());
  check(std::adjacent_find(pages.begin(), pages.end()) == pages.end(), "each has its own");
}

void a_forked_child_reads_by_itself() {
  const ScratchFile scratch("ahead-fork");
  const Image data = pattern(kBytes);
  scratch.fill(data);
  ReadAhead ahead(1 << 30);
  const auto opened = File::open(scratch.path(), kBytes, FileAccess::direct);
  ahead.fetch(scratch.path(), 0, kBytes);
  const pid_t child = fork();
  if (child == 0) {
    ahead.fetch(scratch.path(), 0, 1000);
    ahead.wait();
    ahead.close();
    const auto file = File::open(scratch.path(), kBytes, FileAccess::direct);
    Stage stage;
    Stage::Want want{file.get(), 5, 100'000};
    stage.bring({&want, 1});
    const bool is_same = is_right(want, data);
    Stage::Want of_parent{opened.get(), 5, 100'000};  // which the parent has in memory, or waits for
    stage.bring({&of_parent, 1});
    _exit(is_same && is_right(of_parent, data) ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  check_equal(status, 0);
}

}  // namespace

int main() {
  bytes_are_the_same_with_and_without_reading_ahead();
  extents_are_dropped_when_all_of_them_was_used();
  the_oldest_are_dropped_when_there_are_too_many();
  extents_wait_for_their_step();
  what_cannot_be_read_is_left_to_those_who_need_it();
  a_file_that_was_cut_or_changed_is_an_error_although_its_bytes_are_here();
  a_file_that_got_its_old_time_back_is_read_again();
  no_two_reads_share_a_page_of_memory();
  a_forked_child_reads_by_itself();
  return finish();
}
