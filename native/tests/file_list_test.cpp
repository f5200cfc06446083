#include "core/file_list.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "check.h"

using namespace penstock;
namespace fs = std::filesystem;

namespace {

// Files in a folder of their own: 0 in the root, 1 and 2 in a/, 3 in b/c/; 2 is empty, 3 has a name that is not UTF-8.
struct Folder {
  Folder() {
    char name[] = "/tmp/file_list_test_XXXXXX";
    root = std::string(mkdtemp(name)) + "/";
    fs::create_directories(root + "a");
    fs::create_directories(root + "b/c");
    for (std::size_t i = 0; i < kPaths.size(); ++i) write(i, kContents[i]);
  }
  ~Folder() { fs::remove_all(root); }
  void write(std::size_t i, std::string_view content) const { std::ofstream(root + kPaths[i], std::ios::binary) << content; }

  // What a listing finds now.
  ListedFiles listed() {
    names.clear();
    ends.clear();
    sizes.clear();
    versions.clear();
    for (const std::string& path : kPaths) {
      names += path.substr(path.rfind('/') + 1);
      ends.push_back(static_cast<std::int64_t>(names.size()));
      struct stat info = {};
      stat((root + path).c_str(), &info);
      sizes.push_back(info.st_size);
      const std::int64_t written = std::int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
      for (const std::uint64_t word : {info.st_dev, info.st_ino, static_cast<std::uint64_t>(written)}) versions.push_back(word);
    }
    return {root, {"", "a/", "b/c/"}, runs, names, ends, sizes, versions};
  }

  static inline const std::vector<std::string> kPaths{"x", "a/1", "a/2", "b/c/\xff\xc3\xa9"};
  static inline const std::vector<std::string> kContents{"in the root", "one", "", "not UTF-8"};
  std::string root;
  std::vector<std::int64_t> runs{1, 3, 4}, ends, sizes;
  std::vector<std::uint64_t> versions;
  std::string names;
};

std::string read(const VaryingReader& reader, std::int64_t row) {
  std::int64_t size = 0;
  const std::int64_t start = 0;
  reader.sizes({&row, 1}, 0, &size, nullptr);
  std::string out(static_cast<std::size_t>(size), '?');
  reader.read({&row, 1}, &start, &size, reinterpret_cast<std::byte*>(out.data()));
  return out;
}

void files_are_records() {
  Folder folder;
  const FileList list(folder.listed());
  check_equal(list.length(), std::uint64_t{4}, "files");
  const ListedContents contents(list, 99);
  const ListedPaths paths(list, 77);
  check_equal(contents.batch_bytes(), std::uint64_t{99}, "limit");
  check_equal(paths.batch_bytes(), std::uint64_t{77}, "limit");
  const std::vector<std::string> texts{"x", "a/1", "a/2", "b/c/\\xff\xc3\xa9"};
  for (std::size_t i = 0; i < texts.size(); ++i) {
    check_equal(read(contents, static_cast<std::int64_t>(i)), Folder::kContents[i], "content");
    check_equal(read(paths, static_cast<std::int64_t>(i)), texts[i], "path");
  }
  std::string out(5, '?');
  const std::vector<RecordPart> parts{{0, 11, 3, 3, 0}, {1, 3, 1, 2, 3}};
  contents.read_parts(parts, reinterpret_cast<std::byte*>(out.data()));
  check_equal(out, std::string("thene"), "parts of files");
  const RecordPart name{3, 10, 4, 4, 0};
  paths.read_parts({&name, 1}, reinterpret_cast<std::byte*>(out.data()));
  check_equal(out.substr(0, 4), std::string("\\xff"), "a part of a path");
}

void several_threads_read_a_batch() {
  Folder folder;
  const FileList list(folder.listed());
  const ListedContents contents(list, 1 << 20);
  std::vector<std::int64_t> ids, offsets{0};
  std::string expected;
  for (std::int64_t i = 0; i < 400; ++i) {
    ids.push_back(i * 7 % 4);
    expected += Folder::kContents[static_cast<std::size_t>(ids.back())];
    offsets.push_back(static_cast<std::int64_t>(expected.size()));
  }
  ThreadPool pool(3);
  std::string out(expected.size(), '?');
  contents.read(ids, offsets, reinterpret_cast<std::byte*>(out.data()), pool);
  check(out == expected, "a batch");
  offsets[5] += 1;
  check_throws<std::logic_error>([&] { contents.read(ids, offsets, reinterpret_cast<std::byte*>(out.data()), pool); });
}

void files_that_changed_are_noticed() {
  const auto expect = [](auto change, auto thrown) {
    Folder folder;
    const FileList list(folder.listed());
    const ListedContents contents(list, 1 << 20);
    change(folder);
    check_throws<typename decltype(thrown)::type>([&] { read(contents, 1); });
    check_equal(read(contents, 0), Folder::kContents[0], "the others");
  };
  using Changed = std::type_identity<ChangedError>;
  expect([](Folder& folder) { folder.write(1, "longer"); }, Changed{});
  expect([](Folder& folder) { folder.write(1, ""); }, Changed{});
  expect(
      [](Folder& folder) {  // as long as before, and written at another time
        folder.write(1, "two");
        const timespec times[2] = {{1, 0}, {1, 0}};
        utimensat(AT_FDCWD, (folder.root + "a/1").c_str(), times, 0);
      },
      Changed{});
  expect(
      [](Folder& folder) {  // replaced by one with the same size and time
        struct stat info = {};
        stat((folder.root + "a/1").c_str(), &info);
        std::ofstream(folder.root + "new") << "two";
        fs::rename(folder.root + "new", folder.root + "a/1");
        const timespec times[2] = {info.st_mtim, info.st_mtim};
        utimensat(AT_FDCWD, (folder.root + "a/1").c_str(), times, 0);
      },
      Changed{});
  expect(
      [](Folder& folder) {
        fs::remove(folder.root + "a/1");
        fs::create_symlink("/etc/hostname", folder.root + "a/1");
      },
      Changed{});
  expect(
      [](Folder& folder) {
        fs::remove(folder.root + "a/1");
        mkfifo((folder.root + "a/1").c_str(), 0600);
      },
      Changed{});
  expect(
      [](Folder& folder) {
        fs::remove_all(folder.root + "a");
        std::ofstream(folder.root + "a") << "a file now";
      },
      Changed{});
  expect([](Folder& folder) { fs::remove(folder.root + "a/1"); }, std::type_identity<SystemError>{});
}

void a_version_that_is_not_known_is_any() {
  Folder folder;
  ListedFiles files = folder.listed();
  files.versions = {};
  const FileList list(std::move(files));
  folder.write(1, "two");
  const timespec times[2] = {{1, 0}, {1, 0}};
  utimensat(AT_FDCWD, (folder.root + "a/1").c_str(), times, 0);
  check_equal(read(ListedContents(list, 1 << 20), 1), std::string("two"), "content");
}

void links_are_read_where_they_lead() {
  Folder folder;
  ListedFiles files = folder.listed();
  files.links[1] = folder.root + "x";
  folder.sizes[1] = folder.sizes[0];
  std::copy_n(folder.versions.begin(), 3, folder.versions.begin() + 3);
  const FileList list(std::move(files));
  check_equal(read(ListedContents(list, 1 << 20), 1), Folder::kContents[0], "content");
  check_equal(read(ListedPaths(list, 1 << 20), 1), std::string("a/1"), "path");
}

void labels_are_those_of_runs() {
  Folder folder;
  const FileList list(folder.listed());
  const std::vector<std::int32_t> labels{-1, 5, 7};
  const ListedLabels table(list, labels);
  const RowReader rows({{"", 0, 0, 12, reinterpret_cast<const std::byte*>(labels.data())}}, 1, FileAccess::map);
  const RunReader reader(rows, table, {1 << 20, 4});
  const std::vector<std::int64_t> ids{3, 0, 2, 1};
  std::vector<std::int32_t> found(4, 9);
  std::vector<std::uint8_t> present(4, 1);
  ThreadPool pool(1);
  reader.read_fixed(ids, 4, reinterpret_cast<std::byte*>(found.data()), present.data(), pool);
  check_equal(found, {7, 0, 5, 5}, "labels");
  check_equal(std::vector<int>(present.begin(), present.end()), {1, 0, 1, 1}, "present");
  check_throws<std::invalid_argument>([&] { ListedLabels(list, std::span(labels).first(2)); });
}

void lists_that_do_not_fit_together_are_refused() {
  Folder folder;
  const auto refuse = [&](auto change) {
    ListedFiles files = folder.listed();
    folder.runs = {1, 3, 4};
    change(files);
    check_throws<std::invalid_argument>([&] { FileList{std::move(files)}; });
  };
  refuse([](ListedFiles& files) { files.folders.pop_back(); });
  refuse([&](ListedFiles&) { folder.runs[2] = 5; });
  refuse([&](ListedFiles&) { folder.runs[0] = 4; });
  refuse([&](ListedFiles&) { folder.runs[0] = -1; });
  refuse([&](ListedFiles&) { folder.ends[0] = 99; });
  refuse([&](ListedFiles&) { folder.sizes[0] = -1; });
  refuse([](ListedFiles& files) { files.versions = files.versions.first(11); });
  refuse([](ListedFiles& files) { files.name_ends = files.name_ends.first(3); });
  check_equal(FileList(ListedFiles{}).length(), std::uint64_t{0}, "no files");
}

}  // namespace

int main() {
  files_are_records();
  several_threads_read_a_batch();
  files_that_changed_are_noticed();
  a_version_that_is_not_known_is_any();
  links_are_read_where_they_lead();
  labels_are_those_of_runs();
  lists_that_do_not_fit_together_are_refused();
  return finish();
}
