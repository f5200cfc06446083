#include "core/store_reader.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>

#include "core/buffer_pool.h"
#include "core/copy.h"
#include "core/little_endian.h"
#include "core/pieces.h"
#include "core/slot_cache.h"
#include "core/utf8.h"

namespace penstock {

namespace {

// A field of a chunk whose records lie in the map one after the other, in one cache line: all that the fast path needs.
struct alignas(64) Plain {
  std::atomic<const std::byte*> records{nullptr};  // null: not looked at yet, or not of this kind
  const std::atomic<std::uint64_t>* verified = nullptr;
  const std::byte* validity = nullptr;
  const std::byte* tail = nullptr;  // kTailWord unless the file was cut
  std::uint64_t rows = 0;
  std::uint64_t stride = 0;
  Divider rows_per_page{1};
};
static_assert(sizeof(Plain) == 64);

}  // namespace

// The chunks open in this process.
struct StoreReader::Open {
  explicit Open(std::size_t num_chunks) : chunks(num_chunks) {}

  SlotCache<Chunk> chunks;
  // Of a field, one entry per chunk. A list that only grows, and is read without a lock: every read of a few records begins here.
  struct PlainField {
    std::uint32_t field = 0;
    std::vector<Plain> chunks;
    std::unique_ptr<PlainField> next;
  };

  std::vector<Plain>* find_plain(std::uint32_t field) const {
    PlainField* one = plain.load(std::memory_order_acquire);
    while (one != nullptr && one->field != field) one = one->next.get();
    return one == nullptr ? nullptr : &one->chunks;
  }

  std::mutex change;
  std::atomic<PlainField*> plain{nullptr};
  std::unique_ptr<PlainField> plain_owner;  // of the first
};

namespace {

constexpr std::size_t kTile = 32;
constexpr std::size_t kPlainTile = 64;
constexpr std::uint64_t kPlausibleRatio = 64;  // real data is rarely compressed further

struct Source {
  const Chunk* chunk;
  const ChunkField* field;  // null: the chunk does not have the field, so the record misses it
  std::uint64_t row;
  ChunkField::Extent extent;
  std::uint64_t decoded;
  std::uint64_t id;
  const std::byte* stored = nullptr;  // its stored bytes where they are in memory: mapped, or brought there

  bool missing() const { return field == nullptr || !field->present(row); }
  // Whether the stored bytes are the record itself, whatever the codec: they are if there are as many.
  bool is_stored_raw() const { return extent.bytes == decoded; }
  std::uint64_t offset() const { return field->data_offset + extent.offset; }  // in the file
};

thread_local std::vector<std::byte> scratch;  // stored bytes of a record of a file that is not mapped

Decoder& decoder() {
  thread_local Decoder own;
  return own;
}

std::string in_words(const Source& source, std::uint32_t field) {
  return source.chunk->path() + ": " + source.chunk->in_words(field) + ", record " + std::to_string(source.id) + " (row " +
         std::to_string(source.row) + "): ";
}

[[noreturn]] void corrupt_record(const Source& source, std::uint32_t field, const char* what) {
  throw CorruptError(in_words(source, field) + what);
}

void prefetch(const Source& source) {
  if (source.stored == nullptr) return;
  const std::byte* from = source.stored;
  const std::uint64_t lines = std::min<std::uint64_t>(source.extent.bytes, 512);
  for (std::uint64_t at = 0; at < lines; at += 64) __builtin_prefetch(from + at);
}

// Copies or decodes one record; false if its stored bytes do not decode to the size the index names.
bool copy_record(const Source& source, std::byte* out) {
  const std::span<std::byte> whole{out, source.decoded};
  const ChunkField& field = *source.field;
  if (source.stored != nullptr) {
    return decoder().decode(field.codec, field.dictionary.get(), {source.stored, source.extent.bytes}, whole);
  }
  scratch.resize(source.extent.bytes);
  source.chunk->file()->read(source.offset(), scratch);
  return decoder().decode(field.codec, field.dictionary.get(), scratch, whole);
}

void verify(const Source& source) {
  const std::uint64_t page = source.row / source.field->rows_per_page;
  if (!source.field->is_verified(page)) source.chunk->verify_page(*source.field, page, source.id);
}

}  // namespace

// One read: chunks stay open until it ends, and ids are turned into sources.
class StoreReader::Session {
 public:
  Session(const StoreReader& reader, std::uint32_t field) : Session(reader, field, reader.open_.get(reader.chunks_.size())) {
    use_.emplace(open_.chunks.use());
  }

  // A part of a read that keeps the chunks open already: to ask for that again would wait for a thread that closes one, and waits
  // for this read.
  static Session within_use(const StoreReader& reader, std::uint32_t field) {
    return {reader, field, reader.open_.get(reader.chunks_.size())};
  }

  // After the last read: makes room if too many chunks are open.
  static void trim(const StoreReader& reader) {
    Open& open = reader.open_.get(reader.chunks_.size());
    open.chunks.trim(reader.limits_.open_chunks, [&](std::size_t slot) { leave_plain(open, slot); });
  }

  static void look_at_some(const StoreReader& reader) {
    Open& open = reader.open_.get(reader.chunks_.size());
    const SlotCache<Chunk>::Use use = open.chunks.use();
    open.chunks.look_at_some([](const Chunk& chunk) { chunk.file()->need_unwritten(); });
  }

  static void forget(const StoreReader& reader, std::uint32_t index) {
    Open& open = reader.open_.get(reader.chunks_.size());
    open.chunks.close(index, [&](std::size_t slot) { leave_plain(open, slot); });
  }

  const Chunk& chunk(std::uint32_t index) const {
    return open_.chunks.get(
        index, [&] { return Chunk::open(reader_.chunks_[index], reader_.dataset_, reader_.access_, reader_.names_); });
  }

  std::shared_ptr<const Chunk> share(std::uint32_t index) const {
    (void)chunk(index);
    return open_.chunks.share(index);
  }

  Source source(std::uint64_t id) const {
    const Place place = reader_.locate(redirects_, id);
    const Chunk& found = chunk(place.chunk);
    Source source{&found, found.field(field_), place.row, {}, 0, id};
    if (place.row >= found.rows()) corrupt_record(source, field_, "the manifest names a row the chunk does not have");
    return source;
  }

  // Fills in where the record is; to be called under guard.
  void place_bytes(Source& source) const {
    if (source.field == nullptr) return;
    if (!source.field->extent(source.row, source.extent))
      corrupt_record(source, field_, "the record is outside the field's region");
    source.decoded = source.field->decoded_bytes(source.row, source.extent);
    const std::uint64_t stored = source.extent.bytes;
    if (source.decoded != stored && source.decoded > most_decoded(source.field->codec, stored)) {
      corrupt_record(source, field_, "the record claims more bytes than its stored bytes can decode to");
    }
    if (source.decoded > kMaxRecordBytes) corrupt_record(source, field_, "the record has more bytes than a record can have");
    if (source.decoded > stored && source.decoded > reader_.limits_.record_bytes && source.decoded / kPlausibleRatio > stored) {
      throw BatchTooLargeError(in_words(source, field_) + std::to_string(stored) + " stored bytes claim to be " +
                               std::to_string(source.decoded) + ", more than the limit of " +
                               std::to_string(reader_.limits_.record_bytes) +
                               ": if the store can be trusted, open it with a larger max_record_bytes");
    }
    const std::byte* const mapped = source.chunk->file()->data();
    if (mapped != nullptr) source.stored = mapped + source.offset();
  }

  // The table of the fast path, one entry per chunk.
  std::vector<Plain>& plain() const {
    if (std::vector<Plain>* const known = open_.find_plain(field_); known != nullptr) return *known;
    const std::lock_guard lock(open_.change);
    if (std::vector<Plain>* const known = open_.find_plain(field_); known != nullptr) return *known;
    auto made = std::make_unique<Open::PlainField>();
    made->field = field_;
    made->chunks = std::vector<Plain>(reader_.chunks_.size());
    made->next = std::move(open_.plain_owner);
    open_.plain_owner = std::move(made);
    open_.plain.store(open_.plain_owner.get(), std::memory_order_release);
    return open_.plain_owner->chunks;
  }

  // Opens a chunk and fills its entry; false if its records are not plain ones of this size.
  bool make_plain(Plain& entry, std::uint32_t index, std::uint64_t stride) const {
    const Chunk& found = chunk(index);
    const ChunkField* field = found.field(field_);
    if (field == nullptr || !field->is_plain() || field->stride != stride || found.file()->data() == nullptr) return false;
    const std::lock_guard lock(open_.change);
    if (entry.records.load(std::memory_order_relaxed) != nullptr) return true;  // another thread was first, and others read it
    entry.verified = field->verified.get();
    entry.validity = field->validity;
    entry.tail = found.tail();
    entry.rows = found.rows();
    entry.stride = stride;
    entry.rows_per_page = Divider(field->rows_per_page);
    entry.records.store(found.file()->data() + field->data_offset, std::memory_order_release);
    return true;
  }

  const StoreReader& reader() const { return reader_; }
  std::uint32_t field() const { return field_; }
  bool verifies() const { return reader_.limits_.verify; }

  // Calls each(i, source) for the ids [low, high) of a batch, under guard, with the bytes of the next ones on their way. Of files
  // that are read directly, the bytes of many records are read at a time, and their pages checked.
  template <class Each>
  void for_each(std::span<const std::int64_t> ids, std::size_t low, std::size_t high, const Each& each) const {
    if (reader_.access_ == FileAccess::direct) return for_each_staged(ids, low, high, each);
    for_each_placed(ids, low, high, each);
  }

  // The same without the bytes of records, where they are not mapped.
  template <class Each>
  void for_each_placed(std::span<const std::int64_t> ids, std::size_t low, std::size_t high, const Each& each) const {
    Source tile[kTile];
    for (std::size_t from = low; from < high; from += kTile) {
      const std::size_t size = std::min(kTile, high - from);
      for (std::size_t i = 0; i < size; ++i) tile[i] = source(static_cast<std::uint64_t>(ids[from + i]));
      bool whole = true;
      auto work = [&] {
        for (std::size_t i = 0; i < size; ++i) {
          place_bytes(tile[i]);
          prefetch(tile[i]);
        }
        for (std::size_t i = 0; i < size; ++i) each(from + i, tile[i]);
        for (std::size_t i = 0; i < size; ++i) whole &= tile[i].chunk->is_whole();
      };
      const Fault fault = run_guarded(work);
      if (fault.happened || !whole) fail(tile, size, fault);
      need_unwritten(tile, size);
    }
  }

 private:
  template <class Each>
  void for_each_staged(std::span<const std::int64_t> ids, std::size_t low, std::size_t high, const Each& each) const {
    Stage stage;
    std::vector<Source> tile;
    std::vector<Stage::Want> wants;
    for (std::size_t from = low; from < high; from += tile.size()) {
      tile.clear();
      wants.clear();
      std::uint64_t bytes = 0;
      for (std::size_t i = from; i < high && tile.size() < Stage::kWants && bytes < Stage::kBytes; ++i) {
        tile.push_back(source(static_cast<std::uint64_t>(ids[i])));
        place_bytes(tile.back());
        wants.push_back(want(tile.back()));
        bytes += wants.back().bytes;
      }
      stage.bring(wants);
      for (std::size_t i = 0; i < tile.size(); ++i) {
        if (wants[i].bytes == 0) continue;
        Source& one = tile[i];
        const std::uint64_t page = one.row / one.field->rows_per_page;
        if (verifies() && !one.field->is_verified(page) && is_page(wants[i], one)) {
          one.chunk->check_page(*one.field, page, {wants[i].at, wants[i].bytes}, one.id);
        }
        one.stored = wants[i].at + (one.offset() - wants[i].offset);
      }
      for (std::size_t i = 0; i < tile.size(); ++i) each(from + i, tile[i]);
      stage.need_unwritten();
    }
  }

  // What is to be read for a record: its page if that is to be checked, or only its bytes.
  Stage::Want want(const Source& source) const {
    const File* const file = source.chunk->file().get();
    if (source.missing() || source.extent.bytes == 0) return {file, 0, 0};
    const std::uint64_t page = source.row / source.field->rows_per_page;
    if (!verifies() || source.field->is_verified(page)) return {file, source.offset(), source.extent.bytes};
    const ChunkField::Extent extent = source.chunk->page_extent(*source.field, page);
    const Stage::Want found{file, source.field->data_offset + extent.offset, extent.bytes, source.extent.bytes};
    if (source.offset() < found.offset || source.offset() + source.extent.bytes > found.offset + found.bytes)
      corrupt_record(source, field_, "the record is outside its page");
    return found;
  }

  // Whether that is a page: another thread may have checked it since.
  static bool is_page(const Stage::Want& want, const Source& source) {
    const ChunkField::Extent extent = source.chunk->page_extent(*source.field, source.row / source.field->rows_per_page);
    return want.offset == source.field->data_offset + extent.offset && want.bytes == extent.bytes;
  }

  static void leave_plain(Open& open, std::size_t slot) {
    for (Open::PlainField* one = open.plain.load(); one != nullptr; one = one->next.get())
      one->chunks[slot].records.store(nullptr);
  }

  // Says which of the files failed, and why.
  [[noreturn]] static void fail(const Source* tile, std::size_t size, const Fault& fault) {
    for (std::size_t i = 0; i < size; ++i) {
      bool whole = true;
      auto look = [&] { whole = tile[i].chunk->is_whole(); };
      const File& file = *tile[i].chunk->file();
      if (fault.at != nullptr ? file.contains(fault.at) : run_guarded(look).happened || !whole) file.fail(fault.at);
    }
    fail_in_memory(fault.at);
  }

  // Of files that are not mapped: one call of the system next to one for every record.
  static void need_unwritten(const Source* tile, std::size_t size) {
    const File* last = nullptr;
    for (std::size_t i = 0; i < size; ++i) {
      const File* const file = tile[i].chunk->file().get();
      if (file != last && file->data() == nullptr) file->need_unwritten();
      last = file;
    }
  }

  Session(const StoreReader& reader, std::uint32_t field, Open& open)
      : reader_(reader), field_(field), redirects_(reader.redirects(field)), open_(open) {}

  const StoreReader& reader_;
  std::uint32_t field_;
  const Redirects* redirects_;
  Open& open_;
  std::optional<SlotCache<Chunk>::Use> use_;
};

StoreReader::StoreReader(std::string path, std::uint64_t length, std::vector<ChunkFact> chunks, std::vector<Segment> segments,
                         DatasetId dataset, FileAccess access, StoreLimits limits, FieldNames names)
    : path_(std::move(path)),
      length_(length),
      chunks_(std::move(chunks)),
      segments_(std::move(segments)),
      dataset_(dataset),
      access_(access),
      limits_(limits),
      names_(std::make_shared<const FieldNames>(std::move(names))) {
  limits_.open_chunks = open_file_limit(access_, limits_.open_chunks);
  std::uint64_t next = 0;
  for (const Segment& segment : segments_) {
    const bool fits = segment.first_id == next && segment.count > 0 && segment.count <= length - next &&
                      segment.chunk < chunks_.size() && segment.first_row <= chunks_[segment.chunk].rows &&
                      segment.count <= chunks_[segment.chunk].rows - segment.first_row;
    if (!fits)
      throw CorruptError(where() +
                         "the segments do not cover the records one after the other, or name rows their chunks do not have");
    next += segment.count;
  }
  if (next != length)
    throw CorruptError(where() + "expected segments for " + std::to_string(length) + " records, found " + std::to_string(next));
  if (!segments_.empty()) {
    const std::uint64_t count = segments_.front().count;
    const bool even = std::all_of(segments_.begin(), segments_.end() - 1, [=](const Segment& s) { return s.count == count; });
    if (even && segments_.back().count <= count) even_count_.emplace(count);
  }
}

StoreReader::~StoreReader() = default;

std::string StoreReader::where() const { return path_ + ": "; }

void StoreReader::set_redirects(std::uint32_t field, std::span<const Redirect> redirects) {
  constexpr std::size_t kRun = 16;  // fewer are single: a hash map finds them faster than a search does
  Redirects of_field;
  const auto follows = [](const Redirect& a, const Redirect& b) {
    return b.id == a.id + 1 && b.chunk == a.chunk && b.row == a.row + 1;
  };
  for (std::size_t low = 0; low < redirects.size();) {
    std::size_t high = low + 1;
    while (high < redirects.size() && follows(redirects[high - 1], redirects[high])) ++high;
    for (std::size_t i = low; i < high; ++i) {
      const Redirect& r = redirects[i];
      if (r.id >= length_ || r.chunk >= chunks_.size() || r.row >= chunks_[r.chunk].rows) {
        throw CorruptError(where() + "a redirect names record " + std::to_string(r.id) + " or a row that does not exist");
      }
      if (i > 0 && redirects[i - 1].id >= r.id) throw CorruptError(where() + "the ids of redirects do not rise");
      if (high - low < kRun) of_field.single[r.id] = {r.chunk, r.row};
    }
    const Redirect& first = redirects[low];
    if (high - low >= kRun) of_field.runs.push_back({first.id, first.id + (high - low), {first.chunk, first.row}});
    low = high;
  }
  redirects_[field] = std::move(of_field);
}

const StoreReader::RedirectRun* StoreReader::Redirects::find_run(std::uint64_t id) const {
  const auto after =
      std::upper_bound(runs.begin(), runs.end(), id, [](std::uint64_t x, const RedirectRun& run) { return x < run.first_id; });
  return after == runs.begin() || id >= (after - 1)->stop_id ? nullptr : &*(after - 1);
}

const StoreReader::Redirects* StoreReader::redirects(std::uint32_t field) const {
  const auto found = redirects_.find(field);
  return found == redirects_.end() || (found->second.runs.empty() && found->second.single.empty()) ? nullptr : &found->second;
}

StoreReader::Place StoreReader::locate(const Redirects* redirects, std::uint64_t id) const {
  if (redirects != nullptr) {
    if (const Place* const single = redirects->find_single(id); single != nullptr) return *single;
    if (const RedirectRun* const run = redirects->find_run(id); run != nullptr) {
      return {run->first.chunk, static_cast<std::uint32_t>(run->first.row + (id - run->first_id))};
    }
  }
  const Segment* segment = nullptr;
  if (even_count_) {
    segment = &segments_[even_count_->quotient(id)];
  } else {
    segment = &*(std::upper_bound(segments_.begin(), segments_.end(), id,
                                  [](std::uint64_t x, const Segment& s) { return x < s.first_id; }) -
                 1);
  }
  return {segment->chunk, static_cast<std::uint32_t>(segment->first_row + (id - segment->first_id))};
}

// A batch in slices, with room made after each.
template <class Slice>
void StoreReader::in_slices(std::size_t count, const Slice& slice) const {
  keep_guard();
  penstock::in_slices(count, chunks_.size(), limits_.open_chunks, [&](std::size_t low, std::size_t size) {
    slice(low, size);
    if (look_.is_due()) Session::look_at_some(*this);
    Session::trim(*this);
  });
}

StoreReader::Place StoreReader::place(std::uint32_t field, std::uint64_t id) const { return locate(redirects(field), id); }

void StoreReader::need_chunk(std::uint32_t index) const {
  if (index >= chunks_.size()) {
    throw std::out_of_range("expected a chunk in [0, " + std::to_string(chunks_.size()) + "), got " + std::to_string(index));
  }
}

std::shared_ptr<const Chunk> StoreReader::chunk(std::uint32_t index) const {
  need_chunk(index);
  std::shared_ptr<const Chunk> found = Session(*this, 0).share(index);
  Session::trim(*this);
  return found;
}

void StoreReader::look_at(std::uint32_t index, const std::function<void(const Chunk&)>& look) const {
  need_chunk(index);
  {
    const Session session(*this, 0);
    look(session.chunk(index));
  }
  Session::trim(*this);
}

void StoreReader::forget(std::uint32_t index) const {
  need_chunk(index);
  Session::forget(*this, index);
}

void StoreReader::page_extents(std::uint32_t field, std::span<const std::int64_t> all_ids, std::uint64_t* all_out) const {
  in_slices(all_ids.size(), [&](std::size_t first, std::size_t count) {
    const std::span<const std::int64_t> ids = all_ids.subspan(first, count);
    const Session session(*this, field);
    session.for_each_placed(ids, 0, count, [&](std::size_t i, const Source& source) {
      std::uint64_t* const out = all_out + 3 * (first + i);
      out[0] = place(field, static_cast<std::uint64_t>(ids[i])).chunk;
      out[1] = out[2] = 0;
      if (source.missing()) return;
      const ChunkField::Extent page = source.chunk->page_extent(*source.field, source.row / source.field->rows_per_page);
      if (source.extent.offset < page.offset || source.extent.offset + source.extent.bytes > page.offset + page.bytes)
        corrupt_record(source, field, "the record is outside its page");
      out[1] = source.field->data_offset + page.offset;
      out[2] = out[1] + page.bytes;
    });
  });
}

// The places of a tile of ids.
void StoreReader::locate_tile(const Redirects* redirects, const std::int64_t* ids, std::size_t size, Place* places) const {
  if (redirects != nullptr || !even_count_) {
    for (std::size_t i = 0; i < size; ++i) places[i] = locate(redirects, static_cast<std::uint64_t>(ids[i]));
    return;
  }
  const Divider even = *even_count_;
  const Segment* const segments = segments_.data();
  for (std::size_t i = 0; i < size; ++i) {
    const auto id = static_cast<std::uint64_t>(ids[i]);
    const Segment& segment = segments[even.quotient(id)];
    places[i] = {segment.chunk, static_cast<std::uint32_t>(segment.first_row + (id - segment.first_id))};
  }
}

// Where the records of a read are, for read_plain: all in one store.
class StoreReader::OneStore {
 public:
  explicit OneStore(const Session& session)
      : session_(session), table_(session.plain().data()), redirects_(session.reader().redirects(session.field())) {}

  // Of a tile of records, the first of which is record `first` of the read: places, and entries of their chunks.
  void locate(const std::int64_t* ids, std::size_t, std::size_t size, Place* places, Plain** chunks) const {
    session_.reader().locate_tile(redirects_, ids, size, places);
    for (std::size_t i = 0; i < size; ++i) chunks[i] = table_ + places[i].chunk;
  }
  const Session& session(std::size_t) const { return session_; }

 private:
  const Session& session_;
  Plain* table_;
  const Redirects* redirects_;
};

// The same in several stores; record i is in that of source which[i].
class StoreReader::ManyStores {
 public:
  // What a record of a source is found by, in one cache line.
  struct alignas(64) Lane {
    Plain* table;
    const Segment* segments;
    Divider even_count{1};
    const Redirects* redirects;
    const StoreReader* store;
    std::uint32_t field;
    bool is_even;  // and nothing is redirected

    explicit Lane(const StoreGather::Source& source)
        : table(Session::within_use(*source.store, source.field).plain().data()),  // which stays, whatever is closed
          segments(source.store->segments_.data()),
          redirects(source.store->redirects(source.field)),
          store(source.store),
          field(source.field),
          is_even(source.store->even_count_.has_value() && redirects == nullptr) {
      if (is_even) even_count = *source.store->even_count_;
    }
  };
  static_assert(sizeof(Lane) == 64);

  explicit ManyStores(const Lane* lanes, const std::int32_t* which) : lanes_(lanes), which_(which) {}

  void locate(const std::int64_t* ids, std::size_t first, std::size_t size, Place* places, Plain** chunks) const {
    const std::int32_t* const which = which_ + first;
    for (std::size_t i = 0; i < size; ++i) {
      const Lane& lane = lanes_[which[i]];
      const auto id = static_cast<std::uint64_t>(ids[i]);
      if (lane.is_even) [[likely]] {
        const Segment& segment = lane.segments[lane.even_count.quotient(id)];
        places[i] = {segment.chunk, static_cast<std::uint32_t>(segment.first_row + (id - segment.first_id))};
      } else {
        places[i] = lane.store->locate(lane.redirects, id);
      }
      chunks[i] = lane.table + places[i].chunk;
    }
  }
  Session session(std::size_t i) const {
    const Lane& lane = lanes_[which_[i]];
    return Session::within_use(*lane.store, lane.field);
  }

 private:
  const Lane* lanes_;
  const std::int32_t* which_;
};

// The hot path: plain records of mapped files, a tile at a time: locate, prefetch, check, copy. Returns how many ids from `low`
// on it has read; it stops at the first tile that holds anything else. (Record by record through Source took 100 ns for 128 bytes
// and 70 ns for 4 bytes on one thread; this takes 31 and 13.)
template <class Stores>
std::size_t StoreReader::read_plain(const Stores& stores, std::uint64_t stride, std::span<const std::int64_t> ids,
                                    std::size_t low, std::size_t high, std::byte* out, std::uint8_t* present,
                                    const Places& places) {
  std::size_t done = low;
  auto work = [&] {
    Place rows[kPlainTile];
    Plain* chunks[kPlainTile];
    const std::byte* from[kPlainTile];
    for (std::size_t size = 0; done < high; done += size) {
      size = std::min(kPlainTile, high - done);
      bool some_missing = false;
      stores.locate(ids.data() + done, done, size, rows, chunks);
      for (std::size_t i = 0; i < size; ++i) {
        Plain& chunk = *chunks[i];
        const std::byte* records = chunk.records.load(std::memory_order_acquire);
        if (records == nullptr) [[unlikely]] {
          if (!stores.session(done + i).make_plain(chunk, rows[i].chunk, stride)) return;
          records = chunk.records.load(std::memory_order_acquire);
        }
        if (rows[i].row >= chunk.rows || chunk.stride != stride) [[unlikely]]
          return;
        from[i] = records + rows[i].row * stride;
        __builtin_prefetch(chunk.tail);
      }
      for (std::size_t i = 0; i < size; ++i) prefetch_record(from[i], stride);
      for (std::size_t i = 0; i < size; ++i) {
        const Plain& chunk = *chunks[i];
        const std::uint64_t row = rows[i].row;
        if (chunk.validity != nullptr) [[unlikely]] {
          const auto bit = static_cast<std::uint8_t>(static_cast<unsigned>(chunk.validity[row / 8]) >> (row % 8) & 1);
          present[places[done + i]] = bit;
          if (bit == 0) {  // its page is not needed, and may not be in its landing
            some_missing = true;
            continue;
          }
        }
        const std::uint64_t page = chunk.rows_per_page.quotient(row);
        if ((chunk.verified[page / 64].load(std::memory_order_relaxed) >> (page % 64) & 1) == 0) [[unlikely]] {
          const Session& session = stores.session(done + i);
          if (!session.verifies()) continue;
          const Chunk& owner = session.chunk(rows[i].chunk);
          owner.verify_page(*owner.field(session.field()), page, static_cast<std::uint64_t>(ids[done + i]));
        }
      }
      copy_records(out, {from, size}, stride, places.behind(done));
      for (std::size_t i = 0; some_missing && i < size; ++i) {
        const std::size_t at = places[done + i];
        if (present[at] == 0) std::memset(out + at * stride, 0, stride);
      }
      for (std::size_t i = 0; i < size; ++i) {
        if (*reinterpret_cast<const volatile std::uint64_t*>(chunks[i]->tail) != kTailWord) [[unlikely]]
          return;
      }
    }
  };
  (void)run_guarded(work);  // after a fault the slow path meets it again, and names the file
  return done;
}

std::uint64_t StoreReader::read_fixed(std::uint32_t field, std::uint64_t stride, std::span<const std::int64_t> all_ids,
                                      std::byte* out, std::uint8_t* present, ThreadPool& pool, Places all_places) const {
  if (stride > kMaxRecordBytes) {
    throw CorruptError(where() + field_in_words(names_.get(), field) + " has more bytes than a record can have");
  }
  if (stride == 0) {  // nothing to copy, but presence to find out
    std::vector<std::int64_t> sizes(all_ids.size());
    const std::uint64_t missing = measure(field, 0, all_ids, sizes.data(), nullptr, pool);
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      if (sizes[i] > 0) {
        throw CorruptError(where() + field_in_words(names_.get(), field) + ", record " + std::to_string(all_ids[i]) +
                           ": the record has another size than its field");
      }
      present[all_places[i]] = sizes[i] < 0 ? 0 : 1;
    }
    return missing;
  }
  if (all_ids.empty()) return 0;
  if (all_places.in_a_row()) {
    std::memset(present + all_places[0], 1, all_ids.size());
  } else {
    for (std::size_t i = 0; i < all_ids.size(); ++i) present[all_places[i]] = 1;
  }
  in_slices(all_ids.size(), [&](std::size_t first, std::size_t count) {
    const std::span<const std::int64_t> ids = all_ids.subspan(first, count);
    const Places places = all_places.behind(first);
    const Session session(*this, field);
    in_pieces(ids.size(), stride, pool, [&](std::size_t low, std::size_t high) {
      if (access_ == FileAccess::map) low = read_plain(OneStore(session), stride, ids, low, high, out, present, places);
      session.for_each(ids, low, high, [&](std::size_t i, const Source& source) {
        const bool missing = source.missing();
        const std::size_t at = places[i];
        std::byte* const to = out + at * stride;
        present[at] = missing ? 0 : 1;
        if (missing) {
          std::memset(to, 0, stride);
          return;
        }
        if (source.decoded != stride) corrupt_record(source, field, "the record has another size than its field");
        if (session.verifies()) verify(source);
        if (source.field->is_plain() && source.stored != nullptr) {
          std::memcpy(to, source.stored, stride);
        } else if (!copy_record(source, to)) {
          corrupt_record(source, field, "the stored bytes do not decode");
        }
      });
    });
  });
  if (all_places.in_a_row()) {  // as vector code
    const std::uint8_t* const first = present + all_places[0];
    return static_cast<std::uint64_t>(std::count(first, first + all_ids.size(), std::uint8_t{0}));
  }
  std::uint64_t num_missing = 0;
  for (std::size_t i = 0; i < all_ids.size(); ++i) num_missing += present[all_places[i]] == 0 ? 1 : 0;
  return num_missing;
}

bool StoreGather::can_read(std::span<const Source> sources, std::uint64_t stride) {
  std::unordered_map<const StoreReader*, std::uint32_t> fields;
  // Not landings together with files: evicting one waits for the reads of its store, which must not wait for a disk.
  const auto is_landed = [](const StoreReader& store) {
    return !store.chunks_.empty() && store.chunks_.front().landing != nullptr;
  };
  return stride > 0 && stride <= kMaxRecordBytes && std::all_of(sources.begin(), sources.end(), [&](const Source& source) {
           const StoreReader& store = *source.store;
           return store.access_ == FileAccess::map && store.chunks_.size() <= store.limits_.open_chunks &&
                  is_landed(store) == is_landed(*sources.front().store) &&
                  fields.emplace(&store, source.field).first->second == source.field;
         });
}

StoreGather::StoreGather(std::span<const Source> sources, std::uint64_t stride) : stride_(stride) {
  std::map<const StoreReader*, std::uint32_t, std::less<>> places;  // less orders all pointers
  for (const Source& source : sources) places.emplace(source.store, source.field);
  for (auto& [store, place] : places) {
    stores_.push_back({store, place});
    place = static_cast<std::uint32_t>(stores_.size() - 1);
  }
  for (const Source& source : sources) store_of_.push_back(places.at(source.store));
}

StoreGather::~StoreGather() = default;

// The caches of the stores, in this process.
struct StoreGather::Lanes {
  std::vector<StoreReader::ManyStores::Lane> of_source;
  std::vector<SlotCache<Chunk>*> of_store;

  explicit Lanes(const StoreGather& gather) {
    for (const Source& one : gather.stores_) of_store.push_back(&one.store->open_.get(one.store->chunks_.size()).chunks);
    for (const std::uint32_t store : gather.store_of_) of_source.emplace_back(gather.stores_[store]);
  }

  // Keeps the chunks of the sources of a read open.
  std::vector<SlotCache<Chunk>::Use> use(std::span<const std::uint32_t> store_of, std::span<const std::int32_t> which) const {
    std::vector<std::uint8_t> is_used(of_store.size());
    for (const std::int32_t source : which) is_used[store_of[static_cast<std::size_t>(source)]] = 1;
    std::vector<SlotCache<Chunk>::Use> uses;
    uses.reserve(of_store.size());
    for (std::size_t k = 0; k < of_store.size(); ++k) {
      if (is_used[k] != 0) uses.push_back(of_store[k]->use());
    }
    return uses;
  }
};

std::size_t StoreGather::read(std::span<const std::int64_t> ids, std::span<const std::int32_t> which, std::byte* out,
                              std::uint8_t* present) const {
  keep_guard();
  const Lanes& lanes = lanes_.get(*this);
  std::size_t done = 0;
  {
    const std::vector<SlotCache<Chunk>::Use> uses = lanes.use(store_of_, which);
    const StoreReader::ManyStores stores(lanes.of_source.data(), which.data());
    done = StoreReader::read_plain(stores, stride_, ids, 0, ids.size(), out, present, {});
  }
  if (look_.is_due()) look_at_some(which);
  return done;  // nothing to trim: all chunks may be open at once
}

// Those of the read alone, each as seldom as where it is read by itself: a look may be slow.
void StoreGather::look_at_some(std::span<const std::int32_t> which) const {
  std::vector<bool> is_used(stores_.size());
  for (const std::int32_t source : which) is_used[store_of_[static_cast<std::size_t>(source)]] = true;
  for (std::size_t k = 0; k < stores_.size(); ++k) {
    const StoreReader& store = *stores_[k].store;
    if (is_used[k] && store.look_.is_due()) StoreReader::Session::look_at_some(store);
  }
}

std::uint64_t StoreReader::measure(std::uint32_t field, std::uint8_t ndim, std::span<const std::int64_t> all_ids,
                                   std::int64_t* all_sizes, std::uint32_t* all_dims, ThreadPool& pool) const {
  in_slices(all_ids.size(), [&](std::size_t first, std::size_t count) {
    const std::span<const std::int64_t> ids = all_ids.subspan(first, count);
    std::int64_t* const sizes = all_sizes + first;
    std::uint32_t* const dims = all_dims == nullptr ? nullptr : all_dims + first * ndim;
    const Session session(*this, field);
    in_pieces(ids.size(), 64, pool, [&](std::size_t low, std::size_t high) {
      session.for_each_placed(ids, low, high, [&](std::size_t i, const Source& source) {
        const bool missing = source.missing();
        sizes[i] = missing ? -1 : static_cast<std::int64_t>(source.decoded);
        if (dims == nullptr) return;
        if (!missing && source.field->ndim != ndim)
          corrupt_record(source, field, "the record has another number of dimensions than its field");
        for (std::size_t d = 0; d < ndim; ++d) {
          dims[i * ndim + d] = missing ? 0 : load_le<std::uint32_t>(source.field->dims + 4 * (source.row * ndim + d));
        }
      });
    });
  });
  return static_cast<std::uint64_t>(std::count(all_sizes, all_sizes + all_ids.size(), std::int64_t{-1}));
}

void StoreReader::add_up(std::span<const std::int64_t> sizes, std::int64_t* offsets) const {
  std::uint64_t end = 0;  // cannot overflow: a record and the limit of a batch are far below 2^63
  offsets[0] = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    end += static_cast<std::uint64_t>(std::max<std::int64_t>(sizes[i], 0));
    if (end > limits_.batch_bytes) {
      throw BatchTooLargeError(where() + "the first " + std::to_string(i + 1) + " of " + std::to_string(sizes.size()) +
                               " records have " + std::to_string(end) + " bytes, more than the limit for a batch");
    }
    offsets[i + 1] = static_cast<std::int64_t>(end);
  }
}

void StoreReader::read_variable(std::uint32_t field, bool is_text, std::span<const std::int64_t> all_ids,
                                const std::int64_t* all_starts, const std::int64_t* all_sizes, std::byte* out,
                                ThreadPool& pool) const {
  in_slices(all_ids.size(), [&](std::size_t first, std::size_t count) {
    const std::span<const std::int64_t> ids = all_ids.subspan(first, count);
    const std::int64_t* const starts = all_starts + first;
    const std::int64_t* const sizes = all_sizes + first;
    const Session session(*this, field);
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < count; ++i) total += static_cast<std::uint64_t>(std::max<std::int64_t>(sizes[i], 0));
    in_pieces(count, 4 * total / count, pool, [&](std::size_t low, std::size_t high) {  // decoding costs more than copying
      session.for_each(ids, low, high, [&](std::size_t i, const Source& source) {
        const bool missing = source.missing();
        if ((missing ? -1 : static_cast<std::int64_t>(source.decoded)) != sizes[i])
          corrupt_record(source, field, "the record changed while it was read");
        if (missing) return;
        if (session.verifies()) verify(source);
        if (!copy_record(source, out + starts[i])) corrupt_record(source, field, "the stored bytes do not decode");
        if (is_text && !is_utf8({out + starts[i], source.decoded})) corrupt_record(source, field, "the text is not UTF-8");
      });
    });
  });
}

void StoreReader::read_parts(std::uint32_t field, bool is_text, std::span<const RecordPart> all_parts, std::byte* out) const {
  in_slices(all_parts.size(), [&](std::size_t first, std::size_t count) {
    const std::span<const RecordPart> parts = all_parts.subspan(first, count);
    std::vector<std::int64_t> ids(count);
    std::transform(parts.begin(), parts.end(), ids.begin(), [](const RecordPart& part) { return part.row; });
    const Session session(*this, field);
    Buffer decoded;
    std::int64_t in_buffer = -1;  // the record that is decoded there
    std::int64_t checked = -1;    // the record that was last seen to be UTF-8
    session.for_each(ids, 0, count, [&](std::size_t i, const Source& source) {
      const RecordPart& part = parts[i];
      const auto size = static_cast<std::uint64_t>(part.size);
      if (source.missing() || source.decoded != size) corrupt_record(source, field, "the record changed while it was read");
      if (session.verifies()) verify(source);
      const auto check_text = [&](const std::byte* text) {
        if (!is_text || checked == part.row) return;
        if (!is_utf8({text, size})) corrupt_record(source, field, "the text is not UTF-8");
        checked = part.row;
      };
      std::byte* const to = out + part.start;
      if (part.count == part.size) {
        if (!copy_record(source, to)) corrupt_record(source, field, "the stored bytes do not decode");
        check_text(to);
      } else if (source.is_stored_raw() && source.stored != nullptr) {
        check_text(source.stored);
        std::memcpy(to, source.stored + part.skip, static_cast<std::size_t>(part.count));
      } else {
        if (in_buffer != part.row) {
          in_buffer = -1;
          if (decoded == nullptr || decoded.get_deleter().capacity < size) decoded = take_buffer(size);
          if (!copy_record(source, decoded.get())) corrupt_record(source, field, "the stored bytes do not decode");
          check_text(decoded.get());
          in_buffer = part.row;
        }
        std::memcpy(to, decoded.get() + part.skip, static_cast<std::size_t>(part.count));
      }
    });
  });
}

}  // namespace penstock
