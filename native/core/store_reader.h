// One generation of a record store, read by id: id -> redirect? -> segment -> (chunk, row) -> bytes in the caller's memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/chunk.h"
#include "core/copy.h"
#include "core/divider.h"
#include "core/fork_local.h"
#include "core/pieces.h"
#include "core/thread_pool.h"
#include "core/varying_reader.h"

namespace penstock {

// Records first_id, first_id + 1, ... (count of them) are rows first_row, ... of a chunk. Segments cover [0, length) in order.
struct Segment {
  std::uint64_t first_id;
  std::uint64_t count;
  std::uint32_t chunk;  // place in the list of chunks
  std::uint32_t first_row;
};

// A field of one record that is not where its segment says.
struct Redirect {
  std::uint64_t id;
  std::uint32_t chunk;
  std::uint32_t row;
};

struct StoreLimits {
  // A compressed record may decode to at most this many bytes, or to 64 times its stored ones: a few bytes of a stranger must not
  // claim gigabytes. Records that are stored as they are have the bytes of their file, and no other limit than kMaxRecordBytes.
  std::uint64_t record_bytes = std::uint64_t{1} << 30;
  std::uint64_t open_chunks = kOpenFiles;               // chunks mapped at once
  std::uint64_t batch_bytes = std::uint64_t{16} << 30;  // the most bytes of a batch of a field of varying length
  bool verify = true;                                   // check a page's crc when it is first touched
};

// Immutable but for caches; safe to use from several threads and after fork.
class StoreReader {
 public:
  // path and names: of the store and its fields, for messages.
  StoreReader(std::string path, std::uint64_t length, std::vector<ChunkFact> chunks, std::vector<Segment> segments,
              DatasetId dataset, FileAccess access, StoreLimits limits, FieldNames names = {});
  ~StoreReader();

  // All redirects of a field. To be called before the first read, with ids in rising order.
  void set_redirects(std::uint32_t field, std::span<const Redirect> redirects);

  std::uint64_t length() const { return length_; }

  // Fixed records: record i goes to out + places[i] * stride; missing ones are zeros, present[places[i]] says which, and their
  // number is returned.
  std::uint64_t read_fixed(std::uint32_t field, std::uint64_t stride, std::span<const std::int64_t> ids, std::byte* out,
                           std::uint8_t* present, ThreadPool& pool, Places places = {}) const;

  // Variable records in two passes: sizes first, then bytes at starts[i], as many as sizes[i] says.
  // Texts are checked to be UTF-8. sizes[i] is -1 for a missing record; their number is returned. dims (may be null) gets ndim
  // numbers per record.
  std::uint64_t measure(std::uint32_t field, std::uint8_t ndim, std::span<const std::int64_t> ids, std::int64_t* sizes,
                        std::uint32_t* dims, ThreadPool& pool) const;
  // Ends of records one after the other, from 0 on, by their sizes; refused if they are more than the limit for a batch.
  void add_up(std::span<const std::int64_t> sizes, std::int64_t* offsets) const;
  void read_variable(std::uint32_t field, bool is_text, std::span<const std::int64_t> ids, const std::int64_t* starts,
                     const std::int64_t* sizes, std::byte* out, ThreadPool& pool) const;
  // Parts of records; all of a record is checked, whatever is wanted of it.
  void read_parts(std::uint32_t field, bool is_text, std::span<const RecordPart> parts, std::byte* out) const;
  std::uint64_t batch_bytes() const { return limits_.batch_bytes; }

  // The chunk and row of a record's field, for questions.
  struct Place {
    std::uint32_t chunk;
    std::uint32_t row;
  };
  Place place(std::uint32_t field, std::uint64_t id) const;
  std::shared_ptr<const Chunk> chunk(std::uint32_t index) const;
  // Calls look(chunk), and keeps it open meanwhile.
  void look_at(std::uint32_t index, const std::function<void(const Chunk&)>& look) const;

  // What must be in memory before records of a field of chunks in landings are read, three numbers each: the chunk, and from
  // where to where the page of the record is in it (0 and 0 for a missing record). The indices of the chunks must be in memory.
  void page_extents(std::uint32_t field, std::span<const std::int64_t> ids, std::uint64_t* out) const;
  // Closes a chunk after the reads under way, so that its landing may be dropped; the next read opens it anew and checks it
  // again.
  void forget(std::uint32_t index) const;

 private:
  friend class StoreGather;
  struct Open;
  class Session;
  class OneStore;
  class ManyStores;
  // Consecutive records in consecutive rows of a chunk, as a field has them that was added later.
  struct RedirectRun {
    std::uint64_t first_id;
    std::uint64_t stop_id;
    Place first;
  };
  // A record is in one of both. Runs are in rising order.
  struct Redirects {
    std::vector<RedirectRun> runs;
    std::unordered_map<std::uint64_t, Place> single;
    const Place* find_single(std::uint64_t id) const {
      const auto found = single.find(id);
      return found == single.end() ? nullptr : &found->second;
    }
    const RedirectRun* find_run(std::uint64_t id) const;
  };

  template <class Stores>
  static std::size_t read_plain(const Stores& stores, std::uint64_t stride, std::span<const std::int64_t> ids, std::size_t low,
                                std::size_t high, std::byte* out, std::uint8_t* present, const Places& places);
  std::string where() const;
  void need_chunk(std::uint32_t index) const;
  Place locate(const Redirects* redirects, std::uint64_t id) const;
  void locate_tile(const Redirects* redirects, const std::int64_t* ids, std::size_t size, Place* places) const;
  const Redirects* redirects(std::uint32_t field) const;
  template <class Slice>
  void in_slices(std::size_t count, const Slice& slice) const;

  std::string path_;
  std::uint64_t length_;
  std::vector<ChunkFact> chunks_;
  std::vector<Segment> segments_;
  std::optional<Divider> even_count_;  // records of every segment but the last, if they are all alike
  DatasetId dataset_;
  FileAccess access_;
  StoreLimits limits_;
  std::shared_ptr<const FieldNames> names_;
  std::unordered_map<std::uint32_t, Redirects> redirects_;
  mutable ForkLocal<Open> open_;
  mutable Interval look_;  // at files that may have been written to
};

// Fixed records of several stores in one pass, so that the bytes of one are on their way while those of another are copied. The
// stores must outlive it; safe to use from several threads.
class StoreGather {
 public:
  struct Source {
    const StoreReader* store;
    std::uint32_t field;
  };

  // Whether it can read them: all files are mapped at once, or all are landings; no store is there with two fields.
  static bool can_read(std::span<const Source> sources, std::uint64_t stride);
  StoreGather(std::span<const Source> sources, std::uint64_t stride);
  ~StoreGather();

  // Record ids[i] of source which[i] goes to out + i * stride; present[i], which is 1 before, is 0 if it is missing. Returns how
  // many it has read, from the first on: it stops where a record is not plain, or cannot be read.
  std::size_t read(std::span<const std::int64_t> ids, std::span<const std::int32_t> which, std::byte* out,
                   std::uint8_t* present) const;

 private:
  friend class StoreReader;
  struct Lanes;
  void look_at_some(std::span<const std::int32_t> which) const;

  std::vector<Source> stores_;           // by address, each once: all threads take them in that order, and none waits for another
  std::vector<std::uint32_t> store_of_;  // source
  std::uint64_t stride_;
  mutable ForkLocal<Lanes> lanes_;
  mutable Interval look_;  // at files that may have been written to
};

// A field of varying length of a store, read in the calling thread. The store must outlive it.
class StoreField final : public VaryingReader {
 public:
  StoreField(const StoreReader& store, std::uint32_t field, bool is_text) : store_(store), field_(field), is_text_(is_text) {}

  void sizes(std::span<const std::int64_t> rows, std::uint8_t ndim, std::int64_t* sizes, std::uint32_t* dims) const override {
    store_.measure(field_, ndim, rows, sizes, ndim > 0 ? dims : nullptr, alone_);
  }
  void read(std::span<const std::int64_t> rows, const std::int64_t* starts, const std::int64_t* sizes,
            std::byte* out) const override {
    store_.read_variable(field_, is_text_, rows, starts, sizes, out, alone_);
  }
  void read_parts(std::span<const RecordPart> parts, std::byte* out) const override {
    store_.read_parts(field_, is_text_, parts, out);
  }
  std::uint64_t batch_bytes() const override { return store_.batch_bytes(); }

 private:
  const StoreReader& store_;
  std::uint32_t field_;
  bool is_text_;
  mutable ThreadPool alone_{1};
};

}  // namespace penstock
