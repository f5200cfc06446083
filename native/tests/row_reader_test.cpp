#include "core/row_reader.h"

#include <sys/stat.h>

#include <filesystem>
#include <numeric>
#include <thread>

#include "check.h"
#include "chunk_image.h"

using namespace penstock;

namespace {

constexpr std::uint64_t kStride = 12;

std::byte value_of(std::uint64_t row, std::uint64_t i) { return static_cast<std::byte>(row * 31 + i * 7 + 1); }

// Rows [first, first + rows) behind a header.
class RowFile {
 public:
  RowFile(const std::string& name, std::uint64_t header, std::uint64_t first, std::uint64_t rows)
      : scratch_(name), header_(header), rows_(rows) {
    Image image(header, std::byte{'h'});
    for (std::uint64_t row = first; row < first + rows; ++row) {
      for (std::uint64_t i = 0; i < kStride; ++i) image.push_back(value_of(row, i));
    }
    scratch_.fill(image);
  }
  RowPart part() const { return {scratch_.path(), header_ + rows_ * kStride, header_, rows_}; }
  void cut(std::uint64_t bytes) const { scratch_.cut(bytes); }

 private:
  ScratchFile scratch_;
  std::uint64_t header_, rows_;
};

void check_rows(const RowReader& reader, const std::vector<std::int64_t>& starts, std::uint64_t run, ThreadPool& pool) {
  std::vector<std::byte> out(starts.size() * run * kStride);
  std::vector<std::uint32_t> turned(starts.size());  // from the last place to the first
  for (std::size_t n = 0; n < starts.size(); ++n) turned[n] = static_cast<std::uint32_t>(starts.size() - 1 - n);
  reader.read(starts, run, out.data(), pool, Places(turned.data()));
  const std::vector<std::byte> backwards = out;
  reader.read(starts, run, out.data(), pool);
  for (std::size_t n = 0; n < starts.size(); ++n) {
    for (std::uint64_t r = 0; r < run; ++r) {
      for (std::uint64_t i = 0; i < kStride; ++i) {
        const std::byte expected = value_of(static_cast<std::uint64_t>(starts[n]) + r, i);
        check(out[(n * run + r) * kStride + i] == expected, say("row ", starts[n] + r));
        check(backwards[(turned[n] * run + r) * kStride + i] == expected, say("row ", starts[n] + r, " in another place"));
      }
    }
  }
}

void rows_and_runs_come_from_their_files(FileAccess access, std::uint64_t open_files) {
  const RowFile a("a", 128, 0, 500), b("b", 32, 500, 7), none("n", 8, 507, 0), c("c", 0, 507, 3000);
  const RowReader reader({a.part(), b.part(), none.part(), c.part()}, kStride, access, open_files);
  check_equal(reader.length(), std::uint64_t{3507}, "length");
  std::vector<std::int64_t> ids(3507);
  std::iota(ids.rbegin(), ids.rend(), 0);
  for (const std::size_t threads : {1, 4}) {
    ThreadPool pool(threads);
    check_rows(reader, ids, 1, pool);
    check_rows(reader, {3, 3, 0, 3506, 499, 500}, 1, pool);
    check_rows(reader, {0, 490, 499, 506, 3497}, 10, pool);
    check_rows(reader, {0}, 3507, pool);
    check_rows(reader, {}, 1, pool);
  }
}

void spans_have_lengths_of_their_own(FileAccess access) {
  const RowFile a("sa", 128, 0, 50), b("sb", 32, 50, 7), c("sc", 0, 57, 300);
  const RowReader reader({a.part(), b.part(), c.part()}, kStride, access);
  std::vector<std::int64_t> starts, offsets{0};
  for (std::int64_t i = 0; i < 700; ++i) {
    starts.push_back(i % 17 == 0 ? -1 : i * 37 % 357);  // some are left out
    offsets.push_back(offsets.back() + std::min<std::int64_t>(i % 13 * (i % 3), 357 - starts.back()));
  }
  starts.push_back(357);  // an empty span may begin at the end
  offsets.push_back(offsets.back());
  ThreadPool pool(3);
  std::vector<std::byte> out(static_cast<std::size_t>(offsets.back()) * kStride);
  reader.read_spans(starts, offsets, out.data(), pool);
  for (std::size_t n = 0; n < starts.size(); ++n) {
    for (std::int64_t r = offsets[n]; r < offsets[n + 1]; ++r) {
      const auto row = static_cast<std::uint64_t>(starts[n] + r - offsets[n]);
      for (std::uint64_t i = 0; i < kStride; ++i)
        check(out[static_cast<std::size_t>(r) * kStride + i] == (starts[n] < 0 ? std::byte{} : value_of(row, i)),
              say("span ", n, " row ", row));
    }
  }
}

void many_parts_need_few_files(FileAccess access) {
  std::vector<std::unique_ptr<RowFile>> files;
  std::vector<RowPart> parts;
  for (std::uint64_t i = 0; i < 60; ++i) {
    files.push_back(std::make_unique<RowFile>(say("m", i), 3, i * 5, 5));
    parts.push_back(files.back()->part());
  }
  const RowReader reader(parts, kStride, access, 8);
  ThreadPool pool(3);
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < 900; ++i) ids.push_back(i * 7 % 300);
  check_rows(reader, ids, 1, pool);
}

// Pieces of one file, in any order, are parts that share it.
void pieces_of_a_file_open_it_once(FileAccess access) {
  const RowFile file("p", 5, 0, 400);
  const RowPart whole = file.part();
  std::vector<RowPart> parts;
  for (std::uint64_t i = 0; i < 100; ++i) {
    parts.push_back({whole.path, whole.file_bytes, whole.offset + (99 - i) * 4 * kStride, 4});
  }
  const auto num_open = [] {
    std::size_t count = 0;
    for ([[maybe_unused]] const auto& one : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
    return count;
  };
  const std::size_t before = num_open();
  const RowReader reader(parts, kStride, access);
  ThreadPool pool(3);
  std::vector<std::byte> out(400 * kStride);
  std::vector<std::int64_t> ids(400);
  std::iota(ids.begin(), ids.end(), 0);
  reader.read(ids, 1, out.data(), pool);
  for (std::uint64_t row = 0; row < 400; ++row) {
    const std::uint64_t in_file = (99 - row / 4) * 4 + row % 4;
    for (std::uint64_t i = 0; i < kStride; ++i) check(out[row * kStride + i] == value_of(in_file, i), say("row ", row));
  }
  const std::size_t most = access == FileAccess::direct ? 1 + pool.size() : 1;  // and a ring for each thread
  check(num_open() <= before + most, "one descriptor at most");
}

void memory_is_read_like_files() {
  std::vector<std::byte> rows(40 * kStride);
  for (std::uint64_t i = 0; i < rows.size(); ++i) rows[i] = value_of(i / kStride, i % kStride);
  const RowReader reader({{"", 0, 0, 25, rows.data()}, {"", 0, 0, 15, rows.data() + 25 * kStride}}, kStride, FileAccess::map);
  ThreadPool pool(2);
  check_rows(reader, {39, 0, 24, 25, 24}, 1, pool);
  check_rows(reader, {20, 0}, 20, pool);
}

// Rows [first, first + rows) at their place in the landing, and the rest of it untouched.
void land_rows(Landing& landing, std::uint64_t offset, std::uint64_t base, std::uint64_t first, std::uint64_t rows) {
  Image image;
  for (std::uint64_t row = first; row < first + rows; ++row) {
    for (std::uint64_t i = 0; i < kStride; ++i) image.push_back(value_of(row, i));
  }
  landing.write(offset + (first - base) * kStride, image);
}

void landings_are_read_like_files() {
  const auto a = std::make_shared<Landing>(128 + 500 * kStride), b = std::make_shared<Landing>(3000 * kStride);
  const RowReader reader({{"", 0, 128, 500, nullptr, a}, {"", 0, 0, 3000, nullptr, b}}, kStride, FileAccess::map);
  ThreadPool pool(3);
  land_rows(*a, 128, 0, 100, 400);
  check_rows(reader, {100, 499, 300}, 1, pool);
  std::vector<std::byte> out(2 * kStride);
  for (const std::int64_t start : {499, 500, 3000}) {
    check_throws<std::logic_error>([&] { reader.read(std::vector<std::int64_t>{start}, 2, out.data(), pool); });
  }
  land_rows(*b, 0, 500, 500, 100);
  check_rows(reader, {499, 595, 100}, 5, pool);
  a->drop();
  check_throws<std::logic_error>([&] { reader.read(std::vector<std::int64_t>{100}, 1, out.data(), pool); });
  check_rows(reader, {500}, 100, pool);
  land_rows(*a, 128, 0, 0, 10);
  check_rows(reader, {0, 9}, 1, pool);
}

void landings_without_room_are_refused() {
  const auto landing = std::make_shared<Landing>(100);
  const auto make = [&](std::uint64_t offset, std::uint64_t rows) {
    (void)RowReader({{"", 0, offset, rows, nullptr, landing}}, kStride, FileAccess::map);
  };
  make(4, 8);
  check_throws<CorruptError>([&] { make(5, 8); });
  check_throws<CorruptError>([&] { make(0, 9); });
  check_throws<CorruptError>([&] { make(~0ULL - 3, 1); });
  check_throws<CorruptError>([&] { make(0, ~0ULL / 4); });
}

// Readers of one half while the other half is released and written again, over and over.
void pinned_rows_are_read_while_others_are_released() {
  const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  const std::uint64_t rows = 64 * page / kStride;
  const auto landing = std::make_shared<Landing>(64 * page);
  const RowReader reader({{"", 0, 0, rows, nullptr, landing}}, kStride, FileAccess::map);
  land_rows(*landing, 0, 0, 0, rows);
  std::vector<std::thread> threads;
  for (std::int64_t t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      ThreadPool pool(1);
      for (std::int64_t i = 0; i < 200; ++i)
        check_rows(reader, {i * 3 + t, static_cast<std::int64_t>(rows / 2) - 2 - i}, 1, pool);
    });
  }
  ThreadPool pool(1);
  for (int i = 0; i < 20; ++i) {
    landing->release(32 * page, 64 * page);
    land_rows(*landing, 0, 0, rows / 2 + 1, rows - rows / 2 - 1);
    check_rows(reader, {static_cast<std::int64_t>(rows) - 500}, 500, pool);
  }
  for (std::thread& thread : threads) thread.join();
}

void memory_of_a_file_that_was_cut_is_an_error() {
  const RowFile file("mc", 0, 0, 4000);
  const auto mapped = File::open(file.part().path, 4000 * kStride, FileAccess::map);
  const RowReader reader({{"", 0, 0, 4000, mapped->data()}}, kStride, FileAccess::map);
  file.cut(100);
  ThreadPool pool(1);
  std::vector<std::byte> out(2 * kStride);
  check_throws<TruncatedError>([&] { reader.read(std::vector<std::int64_t>{3990}, 1, out.data(), pool); });
  check_throws<TruncatedError>([&] { reader.read(std::vector<std::int64_t>{3990}, 2, out.data(), pool); });
}

void sizes_that_do_not_fit_are_refused() {
  const auto make = [](RowPart part, std::uint64_t stride) { (void)RowReader({std::move(part)}, stride, FileAccess::map); };
  check_throws<CorruptError>([&] { make({"x", 100, 0, 9}, kStride); });
  check_throws<CorruptError>([&] { make({"x", 100, 32, 6}, kStride); });
  check_throws<CorruptError>([&] { make({"x", ~0ULL, 32, ~0ULL / 4}, kStride); });
  check_throws<CorruptError>([&] { make({"x", 100, ~0ULL - 3, 1}, kStride); });
  check_throws<CorruptError>([&] { make({"", 0, 0, 1}, kStride); });
  check_throws<std::invalid_argument>([&] { make({"x", 100, 0, 1}, 0); });
}

// A cut anywhere before the last page is noticed with every tile, even where the page still reads as zeros.
void a_file_cut_while_it_is_read_is_an_error(FileAccess access) {
  for (const std::uint64_t left : {0, 100, 6000, 41'000, 45'055}) {
    for (const std::uint64_t run : {1, 3}) {
      const RowFile file("cut", 11, 0, 4000);
      const RowReader reader({file.part()}, kStride, access);
      ThreadPool pool(1);
      check_rows(reader, {0, 3990}, run, pool);
      file.cut(left);
      std::vector<std::byte> out(run * kStride);
      const std::vector<std::int64_t> last{static_cast<std::int64_t>(4000 - run)};
      check_throws<TruncatedError>([&] { reader.read(last, run, out.data(), pool); });
      const std::vector<std::int64_t> at_cut{left < 11 ? 0 : static_cast<std::int64_t>((left - 11) / 12)};
      if (access == FileAccess::map && run == 1)
        check_throws<TruncatedError>([&] { reader.read(at_cut, run, out.data(), pool); });
    }
  }
}

void a_mapped_file_cut_within_its_last_page_is_read_as_it_was() {
  const RowFile file("cut-end", 11, 0, 4000);
  const RowReader reader({file.part()}, kStride, FileAccess::map);
  ThreadPool pool(1);
  check_rows(reader, {0}, 1, pool);
  for (const std::uint64_t left : {11 + 4000 * 12 - 1, 45'057, 11 + 4000 * 13}) {
    file.cut(left);
    check_rows(reader, {0, 3990, 3996}, 1, pool);
    check_rows(reader, {0, 3990, 3996}, 4, pool);
  }
}

void rows_of_a_file_that_was_written_to_are_an_error_before_long(FileAccess access) {
  const RowFile file("patch", 11, 0, 4000);
  const RowReader reader({file.part()}, kStride, access);
  ThreadPool pool(1);
  check_rows(reader, {0, 3990}, 1, pool);
  const int descriptor = ::open(file.part().path.c_str(), O_WRONLY | O_CLOEXEC);
  struct stat info = {};
  fstat(descriptor, &info);
  const timespec times[2] = {info.st_atim, {info.st_mtim.tv_sec + 1, 0}};
  check_equal(pwrite(descriptor, "x", 1, 20), 1);
  futimens(descriptor, times);
  ::close(descriptor);
  std::vector<std::byte> out(kStride);
  check_throws<ChangedError>([&] {
    while (true) reader.read(std::vector<std::int64_t>{0}, 1, out.data(), pool);  // until it is noticed; a hang is a failure
  });
  if (access == FileAccess::map) return;
  check_throws<ChangedError>([&] { reader.read(std::vector<std::int64_t>{0}, 1, out.data(), pool); });  // every time
}

void a_file_that_is_opened_again_must_be_the_one_of_before(FileAccess access) {
  std::vector<std::unique_ptr<RowFile>> files;
  std::vector<RowPart> parts;
  for (std::uint64_t i = 0; i < 20; ++i) {
    files.push_back(std::make_unique<RowFile>(say("again", i), 3, i * 5, 5));
    parts.push_back(files.back()->part());
    struct stat info = {};
    stat(parts.back().path.c_str(), &info);
    parts.back().version = {static_cast<std::uint64_t>(info.st_dev), static_cast<std::uint64_t>(info.st_ino),
                            static_cast<std::uint64_t>(info.st_mtim.tv_sec * 1'000'000'000 + info.st_mtim.tv_nsec)};
  }
  const RowReader reader(parts, kStride, access, 8);
  ThreadPool pool(1);
  for (std::int64_t i = 0; i < 20; ++i) check_rows(reader, {i * 5}, 5, pool);
  const RowFile other("again-other", 3, 0, 5);
  rename(other.part().path.c_str(), parts[0].path.c_str());
  const auto read_everything = [&] {
    for (std::int64_t i = 19; i >= 0; --i) check_rows(reader, {i * 5}, 5, pool);
  };
  check_throws<ChangedError>([&] {
    for (int round = 0; round < 20; ++round) read_everything();
  });
}

void threads_may_share_a_reader() {
  const RowFile a("t", 0, 0, 3000);
  const RowReader reader({a.part()}, kStride, FileAccess::map, 1);
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      ThreadPool pool(1);
      for (std::int64_t i = 0; i < 50; ++i) check_rows(reader, {i * 3 + t, 2999 - i}, 1, pool);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

int main() {
  for (const FileAccess access : {FileAccess::map, FileAccess::pread, FileAccess::direct}) {
    rows_and_runs_come_from_their_files(access, 16'384);
    rows_and_runs_come_from_their_files(access, 1);
    many_parts_need_few_files(access);
    pieces_of_a_file_open_it_once(access);
    spans_have_lengths_of_their_own(access);
    a_file_cut_while_it_is_read_is_an_error(access);
    rows_of_a_file_that_was_written_to_are_an_error_before_long(access);
    a_file_that_is_opened_again_must_be_the_one_of_before(access);
  }
  memory_is_read_like_files();
  landings_are_read_like_files();
  landings_without_room_are_refused();
  pinned_rows_are_read_while_others_are_released();
  memory_of_a_file_that_was_cut_is_an_error();
  sizes_that_do_not_fit_are_refused();
  a_mapped_file_cut_within_its_last_page_is_read_as_it_was();
  threads_may_share_a_reader();
  return finish();
}
