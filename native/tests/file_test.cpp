#include "core/file.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <csignal>
#include <thread>

#include "check.h"
#include "chunk_image.h"

using namespace penstock;

namespace {

const std::vector<FileAccess> kAll{FileAccess::map, FileAccess::pread, FileAccess::direct};

Image pattern(std::size_t size) {
  Image made(size);
  for (std::size_t i = 0; i < size; ++i) made[i] = static_cast<std::byte>(i * 31 + i / 256);
  return made;
}

void bytes_are_read_at_every_place() {
  const ScratchFile scratch("file-read");
  const Image data = pattern(9000);
  scratch.fill(data);
  for (const FileAccess access : kAll) {
    const auto file = File::open(scratch.path(), data.size(), access);
    check_equal(file->size(), data.size());
    check_equal(file->data() != nullptr, access == FileAccess::map);
    check(file->is_whole(), "it is whole");
    file->need_unwritten();
    for (const std::size_t offset : {0, 1, 4095, 4096, 8999, 9000}) {
      for (const std::size_t size : {0, 1, 17, 5000}) {
        if (offset + size > data.size()) continue;
        Image out(size);
        file->read(offset, out);
        check(std::equal(out.begin(), out.end(), data.begin() + static_cast<std::ptrdiff_t>(offset)), say(offset, " + ", size));
      }
    }
    Image out(2);
    check_throws<CorruptError>([&] { file->read(8999, out); });
    check_throws<CorruptError>([&] { file->read(9001, {}); });
    check_throws<CorruptError>([&] { file->read(~std::uint64_t{0}, out); });
    check_throws<CorruptError>([&] { file->read(~std::uint64_t{0} - 1, out); });
  }
}

void empty_files_can_be_opened() {
  const ScratchFile scratch("file-empty");
  for (const FileAccess access : kAll) {
    const auto file = File::open(scratch.path(), 0, access);
    file->read(0, {});
    check_equal(file->size(), 0);
  }
}

void what_is_not_a_file_of_that_size_is_refused() {
  const ScratchFile scratch("file-kind");
  scratch.fill(pattern(100));
  const std::string other = scratch.path() + "-other";
  for (const FileAccess access : kAll) {
    check_throws<CorruptError>([&] { File::open(scratch.path(), 99, access); });
    check_throws<CorruptError>([&] { File::open(scratch.path(), 101, access); });
    check_throws<CorruptError>([&] { File::open(scratch.path(), ~std::uint64_t{0}, access); });
    check_throws<CorruptError>([&] { File::open("/dev/shm", 100, access); });
    check_throws<CorruptError>([&] { File::open("/dev/zero", 0, access); });
    check_throws<SystemError>([&] { File::open(other, 100, access); });
    check_equal(symlink(scratch.path().c_str(), other.c_str()), 0);
    check_throws<CorruptError>([&] { File::open(other, 100, access); });
    unlink(other.c_str());
    check_equal(mkfifo(other.c_str(), 0600), 0);
    check_throws<CorruptError>([&] { File::open(other, 0, access); });  // and does not wait for a writer
    unlink(other.c_str());
  }
}

void a_cut_file_is_an_exception_and_the_guard_is_gone_afterwards() {
  for (const FileAccess access : kAll) {
    const ScratchFile scratch("file-cut");
    const Image data = pattern(1 << 16);
    scratch.fill(data);
    const auto file = File::open(scratch.path(), data.size(), access);
    for (int round = 0; round < 100; ++round) {
      Image out(100);
      scratch.cut(4096);
      file->read(0, out);  // what is still there
      check_throws<TruncatedError>([&] { file->read(1 << 15, out); });
      check_throws<TruncatedError>([&] { file->read(data.size() - 100, out); });
      scratch.fill(data);
      file->read(1 << 15, out);
      check(std::equal(out.begin(), out.end(), data.begin() + (1 << 15)), "after it is whole again");
    }
  }
}

void a_file_stays_readable_when_its_name_is_gone() {
  for (const FileAccess access : kAll) {
    const ScratchFile scratch("file-unlinked");
    const Image data = pattern(5000);
    scratch.fill(data);
    const auto file = File::open(scratch.path(), data.size(), access);
    unlink(scratch.path().c_str());
    Image out(5000);
    file->read(0, out);
    check(out == data, "the bytes of the file that was opened");
  }
}

bool holds(const File& file) {
  bool whole = false;
  auto look = [&] { whole = file.is_whole(); };
  return !run_guarded(look).happened && whole;
}

Image read_all(const File& file) {
  Image out(file.size());
  file.read(0, out);
  return out;
}

void a_mapped_file_that_is_renamed_replaced_or_appended_to_is_still_whole() {
  for (const std::size_t size : {100, 4088, 4089, 4096, 5000, 8192, 40'000}) {
    const Image data = pattern(size);
    const ScratchFile scratch("file-names"), other("file-names-other");
    scratch.fill(data);
    other.fill(Image(size, std::byte{7}));
    const auto file = File::open(scratch.path(), size, FileAccess::map);
    scratch.cut(3 * size);
    check(holds(*file) && read_all(*file) == data, say("appended to ", size));
    file->need_unwritten();
    rename(scratch.path().c_str(), (scratch.path() + "-aside").c_str());
    check(holds(*file) && read_all(*file) == data, say("renamed ", size));
    rename(other.path().c_str(), scratch.path().c_str());
    check(holds(*file) && read_all(*file) == data, say("replaced ", size));
    file->need_unwritten();
    unlink((scratch.path() + "-aside").c_str());
    check(holds(*file) && read_all(*file) == data, say("removed ", size));
  }
}

void every_cut_is_noticed_or_changes_nothing() {
  for (const std::size_t size : {100, 4096, 5000, 8192, 20'000}) {
    const Image data = pattern(size);
    for (std::size_t left = 0; left < size; left += 61) {
      const ScratchFile scratch("file-cuts");
      scratch.fill(data);
      const auto file = File::open(scratch.path(), size, FileAccess::map);
      scratch.cut(left);
      check(holds(*file) ? read_all(*file) == data : left / 4096 < (size - 1) / 4096 || left == 0, say(size, " cut to ", left));
      const bool had_room = size % 4096 != 0;
      scratch.fill(Image(size, std::byte{9}));  // grown again, with other bytes
      check(holds(*file) ? left > (size - 1) / 4096 * 4096 : had_room || left < size, say(size, " after a cut to ", left));
    }
  }
}

void a_name_must_stand_for_the_version_that_was_seen_first() {
  for (const FileAccess access : kAll) {
    const ScratchFile scratch("file-version"), other("file-version-other");
    scratch.fill(pattern(5000));
    other.fill(pattern(5000));
    struct stat info = {};
    stat(scratch.path().c_str(), &info);
    const FileVersion first{static_cast<std::uint64_t>(info.st_dev), static_cast<std::uint64_t>(info.st_ino),
                            static_cast<std::uint64_t>(info.st_mtim.tv_sec * 1'000'000'000 + info.st_mtim.tv_nsec)};
    const auto open = [&](const FileVersion& version) { return File::open(scratch.path(), 5000, access, version); };
    const auto file = open(first);
    check_throws<ChangedError>([&] { open({first.device, first.inode, first.written_ns - 1}); });
    scratch.cut(4000);
    check_throws<TruncatedError>([&] { open(first); });
    scratch.cut(6000);
    check_throws<ChangedError>([&] { open(first); });
    scratch.cut(5000);
    const timespec later[2] = {{1, 0}, {info.st_mtim.tv_sec + 1, 0}};
    utimensat(AT_FDCWD, scratch.path().c_str(), later, 0);
    check_throws<ChangedError>([&] { open(first); });
    check_throws<ChangedError>([&] { file->need_unwritten(); });
    rename(other.path().c_str(), scratch.path().c_str());
    check_throws<ChangedError>([&] { open(first); });
    open({});
  }
}

// A disk that fails cannot be had here: the fault is told, not made.
void a_fault_in_a_file_that_is_whole_is_the_disk_and_names_the_byte() {
  const ScratchFile scratch("file-eio");
  scratch.fill(pattern(1 << 16));
  const auto file = File::open(scratch.path(), 1 << 16, FileAccess::map);
  for (const bool in_memory : {false, true}) {
    try {
      if (in_memory) fail_in_memory(file->data() + 50'000);
      file->fail(file->data() + 50'000);
    } catch (const SystemError& error) {
      check_equal(error.code, EIO);
      check_equal(error.path, scratch.path());
      check(error.words.find("byte 50000") != std::string::npos, error.words);
    }
  }
  scratch.cut(50'000);
  check_throws<TruncatedError>([&] { file->fail(file->data() + 50'000); });
  check_throws<TruncatedError>([&] { fail_in_memory(file->data() + 50'000); });
  rename(scratch.path().c_str(), (scratch.path() + "-aside").c_str());
  check_throws<TruncatedError>([&] { file->fail(file->data() + 50'000); });
  unlink((scratch.path() + "-aside").c_str());
  check_throws<SystemError>([&] { file->fail(file->data() + 50'000); });
}

volatile std::sig_atomic_t num_passed_on = 0;

void the_guard_comes_back_and_passes_on_what_is_not_its_own() {
  const ScratchFile scratch("file-handler");
  scratch.fill(pattern(1 << 16));
  const auto file = File::open(scratch.path(), 1 << 16, FileAccess::map);
  struct sigaction ours = {}, theirs = {};
  sigaction(SIGBUS, nullptr, &ours);
  theirs.sa_handler = [](int) { num_passed_on = num_passed_on + 1; };
  for (int i = 1; i <= 20; ++i) {
    sigaction(SIGBUS, &theirs, nullptr);
    for (struct sigaction now = theirs; now.sa_sigaction != ours.sa_sigaction; sigaction(SIGBUS, nullptr, &now)) keep_guard();
    raise(SIGBUS);
    check_equal(static_cast<int>(num_passed_on), i);
  }
  scratch.cut(0);
  Image out(100);
  check_throws<TruncatedError>([&] { file->read(0, out); });
}

void guards_nest_and_let_exceptions_through() {
  const ScratchFile scratch("file-guard");
  scratch.fill(pattern(1 << 16));
  const auto file = File::open(scratch.path(), 1 << 16, FileAccess::map);
  scratch.cut(0);
  volatile std::byte seen{};
  auto touch = [&] { seen = file->data()[50'000]; };
  bool inner_held = true;
  bool went_on = false;
  auto outer = [&] {
    inner_held = !run_guarded(touch).happened;
    went_on = true;
  };
  check(!run_guarded(outer).happened, "the outer guard saw nothing");
  check(!inner_held && went_on, "the inner one did");
  auto fall = [&] {
    (void)run_guarded(touch);
    touch();
  };
  check(run_guarded(fall).happened, "the outer guard holds again after the inner one");
  auto raise = [] { throw std::out_of_range("through"); };
  check_throws<std::out_of_range>([&] { (void)run_guarded(raise); });
  check(run_guarded(touch).at == file->data() + 50'000, "after an exception");
  auto nothing = [] {};
  check(!run_guarded(nothing).happened, "work without a fault");
}

void guards_of_several_threads_do_not_meet() {
  const ScratchFile good("file-threads-good");
  const ScratchFile bad("file-threads-bad");
  const Image data = pattern(1 << 16);
  good.fill(data);
  bad.fill(data);
  const auto whole = File::open(good.path(), data.size(), FileAccess::map);
  const auto cut = File::open(bad.path(), data.size(), FileAccess::map);
  bad.cut(0);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 2000; ++i) {
        Image out(256);
        if (t % 2 == 0) {
          whole->read(static_cast<std::uint64_t>(i), out);
          check(out[0] == data[static_cast<std::size_t>(i)], "the good file");
        } else {
          check_throws<TruncatedError>([&] { cut->read(static_cast<std::uint64_t>(i), out); });
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

int main() {
  bytes_are_read_at_every_place();
  empty_files_can_be_opened();
  what_is_not_a_file_of_that_size_is_refused();
  a_cut_file_is_an_exception_and_the_guard_is_gone_afterwards();
  a_file_stays_readable_when_its_name_is_gone();
  a_mapped_file_that_is_renamed_replaced_or_appended_to_is_still_whole();
  every_cut_is_noticed_or_changes_nothing();
  a_name_must_stand_for_the_version_that_was_seen_first();
  a_fault_in_a_file_that_is_whole_is_the_disk_and_names_the_byte();
  the_guard_comes_back_and_passes_on_what_is_not_its_own();
  guards_nest_and_let_exceptions_through();
  guards_of_several_threads_do_not_meet();
  return finish();
}
