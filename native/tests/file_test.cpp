#include "core/file.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <thread>

#include "check.h"
#include "chunk_image.h"

using namespace penstock;

namespace {

const std::vector<FileAccess> kBoth{FileAccess::map, FileAccess::pread};

Image pattern(std::size_t size) {
  Image made(size);
  for (std::size_t i = 0; i < size; ++i) made[i] = static_cast<std::byte>(i * 31 + i / 256);
  return made;
}

void bytes_are_read_at_every_place() {
  const ScratchFile scratch("file-read");
  const Image data = pattern(9000);
  scratch.fill(data);
  for (const FileAccess access : kBoth) {
    const auto file = File::open(scratch.path(), data.size(), access);
    check_equal(file->size(), data.size());
    check_equal(file->data() != nullptr, access == FileAccess::map);
    check(file->has_its_size(), "it has its size");
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
  for (const FileAccess access : kBoth) {
    const auto file = File::open(scratch.path(), 0, access);
    file->read(0, {});
    check_equal(file->size(), 0);
  }
}

void what_is_not_a_file_of_that_size_is_refused() {
  const ScratchFile scratch("file-kind");
  scratch.fill(pattern(100));
  const std::string other = scratch.path() + "-other";
  for (const FileAccess access : kBoth) {
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
  for (const FileAccess access : kBoth) {
    const ScratchFile scratch("file-cut");
    const Image data = pattern(1 << 16);
    scratch.fill(data);
    const auto file = File::open(scratch.path(), data.size(), access);
    for (int round = 0; round < 100; ++round) {
      Image out(100);
      scratch.cut(4096);
      file->read(0, out);  // what is still there
      check(!file->has_its_size(), "the size changed");
      check_throws<TruncatedError>([&] { file->read(1 << 15, out); });
      check_throws<TruncatedError>([&] { file->read(data.size() - 100, out); });
      scratch.fill(data);
      file->read(1 << 15, out);
      check(std::equal(out.begin(), out.end(), data.begin() + (1 << 15)), "after it is whole again");
    }
  }
}

void a_file_stays_readable_when_its_name_is_gone() {
  for (const FileAccess access : kBoth) {
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
    inner_held = run_guarded(touch);
    went_on = true;
  };
  check(run_guarded(outer), "the outer guard saw nothing");
  check(!inner_held && went_on, "the inner one did");
  auto fall = [&] {
    (void)run_guarded(touch);
    touch();
  };
  check(!run_guarded(fall), "the outer guard holds again after the inner one");
  auto raise = [] { throw std::out_of_range("through"); };
  check_throws<std::out_of_range>([&] { (void)run_guarded(raise); });
  check(!run_guarded(touch), "after an exception");
  auto nothing = [] {};
  check(run_guarded(nothing), "work without a fault");
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
  guards_nest_and_let_exceptions_through();
  guards_of_several_threads_do_not_meet();
  return finish();
}
