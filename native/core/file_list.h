// Files of a folder as records: their bytes, their paths and the labels of their folders. A million names are in one buffer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/file.h"
#include "core/run_reader.h"
#include "core/thread_pool.h"
#include "core/varying_reader.h"

namespace penstock {

// What a listing has found. Files of one folder that follow each other are a run. The arrays are the caller's, and must outlive
// the list.
struct ListedFiles {
  std::string root;                         // ends with a slash
  std::vector<std::string> folders;         // of each run, below the root; "" or with a slash at its end
  std::span<const std::int64_t> run_ends;   // the number behind the last file of each run
  std::span<const char> names;              // one behind the other, without their folders
  std::span<const std::int64_t> name_ends;  // where the name of each file ends there
  std::span<const std::int64_t> sizes;      // bytes
  std::span<const std::uint64_t> versions;  // three numbers each: device, inode, time of the last write; or nothing
  std::unordered_map<std::int64_t, std::string> links = {};  // where those that are links lead to
};

// Immutable; safe to use from several threads.
class FileList {
 public:
  // Throws std::invalid_argument unless the arrays fit together.
  explicit FileList(ListedFiles files);

  std::uint64_t length() const { return files_.sizes.size(); }
  std::int64_t size(std::int64_t file) const { return files_.sizes[static_cast<std::size_t>(file)]; }
  FileVersion version(std::int64_t file) const;
  std::size_t run(std::int64_t file) const;
  std::size_t num_runs() const { return files_.run_ends.size(); }
  // What to open.
  std::string path(std::int64_t file) const;
  // The path below the root, as text: bytes that are not UTF-8 are escapes.
  std::string text(std::int64_t file) const;

 private:
  std::string_view folder(std::int64_t file) const { return files_.folders[run(file)]; }
  std::string_view name(std::int64_t file) const;

  ListedFiles files_;
};

// The bytes of files. Each is opened, compared with what was listed, read, compared again and closed, by one thread: there are
// never more descriptors than threads. Safe to use from several threads. The list must outlive it.
class ListedContents final : public VaryingReader {
 public:
  ListedContents(const FileList& list, std::uint64_t batch_bytes) : list_(list), batch_bytes_(batch_bytes) {}

  void sizes(std::span<const std::int64_t> rows, std::uint8_t ndim, std::int64_t* sizes, std::uint32_t* dims) const override;
  void read(std::span<const std::int64_t> rows, const std::int64_t* starts, const std::int64_t* sizes,
            std::byte* out) const override;
  // File rows[i] goes to out + offsets[i].
  void read(std::span<const std::int64_t> rows, std::span<const std::int64_t> offsets, std::byte* out, ThreadPool& pool) const;
  void read_parts(std::span<const RecordPart> parts, std::byte* out) const override;
  std::uint64_t batch_bytes() const override { return batch_bytes_; }

 private:
  void read_one(std::int64_t file, std::int64_t skip, std::span<std::byte> out) const;

  const FileList& list_;
  std::uint64_t batch_bytes_;
};

// The paths of files below their root, as text. Safe to use from several threads. The list must outlive it.
class ListedPaths final : public VaryingReader {
 public:
  ListedPaths(const FileList& list, std::uint64_t batch_bytes) : list_(list), batch_bytes_(batch_bytes) {}

  void sizes(std::span<const std::int64_t> rows, std::uint8_t ndim, std::int64_t* sizes, std::uint32_t* dims) const override;
  void read(std::span<const std::int64_t> rows, const std::int64_t* starts, const std::int64_t* sizes,
            std::byte* out) const override;
  void read_parts(std::span<const RecordPart> parts, std::byte* out) const override;
  std::uint64_t batch_bytes() const override { return batch_bytes_; }

 private:
  const FileList& list_;
  std::uint64_t batch_bytes_;
};

// A number for each run of files, as rows of bytes: that of a file is that of its run, and missing where it is below 0. The list
// and the numbers must outlive it.
class ListedLabels final : public RunTable {
 public:
  // Throws std::invalid_argument unless there is one for each run.
  ListedLabels(const FileList& list, std::span<const std::int32_t> labels);

  std::uint64_t length() const override { return list_.length(); }
  void find(std::span<const std::int64_t> records, Run* out) const override;

 private:
  const FileList& list_;
  std::span<const std::int32_t> labels_;
};

}  // namespace penstock
