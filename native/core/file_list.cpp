#include "core/file_list.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "core/pieces.h"
#include "core/utf8.h"

namespace penstock {
namespace {

constexpr std::size_t kVersionWords = 3;
constexpr std::uint64_t kOpenWork = 16 << 10;  // to open and close a file takes about as long as to copy so many bytes

bool rises(std::span<const std::int64_t> ends, std::size_t last) {
  if (ends.empty()) return last == 0;
  return ends.front() >= 0 && std::is_sorted(ends.begin(), ends.end()) && static_cast<std::size_t>(ends.back()) == last;
}

void need_no_shapes(std::uint8_t ndim) {
  if (ndim != 0) throw std::logic_error("files and their names have no shapes");
}

[[noreturn]] void fail_measured() { throw std::logic_error("a record has another size than was measured"); }

}  // namespace

FileList::FileList(ListedFiles files) : files_(std::move(files)) {
  const std::size_t count = files_.sizes.size();
  const bool fits = files_.folders.size() == files_.run_ends.size() && files_.name_ends.size() == count &&
                    (files_.versions.empty() || files_.versions.size() == kVersionWords * count) &&
                    rises(files_.run_ends, count) && rises(files_.name_ends, files_.names.size()) &&
                    std::all_of(files_.sizes.begin(), files_.sizes.end(), [](std::int64_t size) { return size >= 0; });
  if (!fits) throw std::invalid_argument("expected a name, a size and a version of every file, and a folder of every run");
}

FileVersion FileList::version(std::int64_t file) const {
  if (files_.versions.empty()) return {};
  const std::uint64_t* const words = files_.versions.data() + kVersionWords * static_cast<std::size_t>(file);
  return {words[0], words[1], words[2]};
}

std::size_t FileList::run(std::int64_t file) const {
  const auto found = std::upper_bound(files_.run_ends.begin(), files_.run_ends.end(), file);
  return static_cast<std::size_t>(found - files_.run_ends.begin());
}

std::string_view FileList::name(std::int64_t file) const {
  const auto number = static_cast<std::size_t>(file);
  const auto low = static_cast<std::size_t>(number == 0 ? 0 : files_.name_ends[number - 1]);
  return {files_.names.data() + low, static_cast<std::size_t>(files_.name_ends[number]) - low};
}

std::string FileList::path(std::int64_t file) const {
  if (const auto link = files_.links.find(file); link != files_.links.end()) return link->second;
  const std::string_view above = folder(file), own = name(file);
  std::string made;
  made.reserve(files_.root.size() + above.size() + own.size());
  return made.append(files_.root).append(above).append(own);
}

std::string FileList::text(std::int64_t file) const {
  const std::string_view above = folder(file), own = name(file);
  return with_escapes(std::string(above).append(own));
}

void ListedContents::sizes(std::span<const std::int64_t> rows, std::uint8_t ndim, std::int64_t* sizes, std::uint32_t*) const {
  need_no_shapes(ndim);
  for (std::size_t i = 0; i < rows.size(); ++i) sizes[i] = list_.size(rows[i]);
}

void ListedContents::read_one(std::int64_t file, std::int64_t skip, std::span<std::byte> out) const {
  read_listed(list_.path(file), static_cast<std::uint64_t>(list_.size(file)), list_.version(file),
              static_cast<std::uint64_t>(skip), out);
}

void ListedContents::read(std::span<const std::int64_t> rows, const std::int64_t* starts, const std::int64_t* sizes,
                          std::byte* out) const {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (sizes[i] != list_.size(rows[i])) fail_measured();
    read_one(rows[i], 0, {out + starts[i], static_cast<std::size_t>(sizes[i])});
  }
}

void ListedContents::read(std::span<const std::int64_t> rows, std::span<const std::int64_t> offsets, std::byte* out,
                          ThreadPool& pool) const {
  if (rows.empty()) return;
  const auto total = static_cast<std::uint64_t>(offsets.back() - offsets.front());
  in_pieces(rows.size(), total / rows.size() + kOpenWork, pool, [&](std::size_t low, std::size_t high) {
    for (std::size_t i = low; i < high; ++i) {
      if (offsets[i + 1] - offsets[i] != list_.size(rows[i])) fail_measured();
      read_one(rows[i], 0, {out + offsets[i], static_cast<std::size_t>(list_.size(rows[i]))});
    }
  });
}

void ListedContents::read_parts(std::span<const RecordPart> parts, std::byte* out) const {
  for (const RecordPart& part : parts) {
    if (part.size != list_.size(part.row)) fail_measured();
    read_one(part.row, part.skip, {out + part.start, static_cast<std::size_t>(part.count)});
  }
}

void ListedPaths::sizes(std::span<const std::int64_t> rows, std::uint8_t ndim, std::int64_t* sizes, std::uint32_t*) const {
  need_no_shapes(ndim);
  for (std::size_t i = 0; i < rows.size(); ++i) sizes[i] = static_cast<std::int64_t>(list_.text(rows[i]).size());
}

void ListedPaths::read(std::span<const std::int64_t> rows, const std::int64_t* starts, const std::int64_t* sizes,
                       std::byte* out) const {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::string text = list_.text(rows[i]);
    if (static_cast<std::int64_t>(text.size()) != sizes[i]) fail_measured();
    std::memcpy(out + starts[i], text.data(), text.size());
  }
}

void ListedPaths::read_parts(std::span<const RecordPart> parts, std::byte* out) const {
  for (const RecordPart& part : parts) {
    const std::string text = list_.text(part.row);
    if (static_cast<std::int64_t>(text.size()) != part.size) fail_measured();
    std::memcpy(out + part.start, text.data() + part.skip, static_cast<std::size_t>(part.count));
  }
}

ListedLabels::ListedLabels(const FileList& list, std::span<const std::int32_t> labels) : list_(list), labels_(labels) {
  if (labels.size() != list.num_runs()) throw std::invalid_argument("expected a label for every run of files");
}

void ListedLabels::find(std::span<const std::int64_t> records, Run* out) const {
  constexpr auto kBytes = static_cast<std::int64_t>(sizeof(std::int32_t));
  for (std::size_t i = 0; i < records.size(); ++i) {
    const std::size_t run = list_.run(records[i]);
    out[i] = {static_cast<std::int64_t>(run) * kBytes, labels_[run] < 0 ? -1 : kBytes};
  }
}

}  // namespace penstock
