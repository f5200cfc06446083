#include "core/span_table.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "core/crc32c.h"
#include "core/error.h"
#include "core/file.h"

namespace penstock {
namespace {

constexpr std::size_t kTile = 64;
constexpr std::int64_t kGap = 1 << 20;  // bytes between spans that are not worth an extent of their own
constexpr std::size_t kWord = sizeof(std::int64_t);

std::int64_t word_at(const std::byte* row, std::int32_t word) {
  std::int64_t value = 0;
  std::memcpy(&value, row + static_cast<std::size_t>(word) * kWord, kWord);
  return value;
}

// Whether [start, start + size) is within `bytes`.
bool is_within(std::int64_t start, std::int64_t size, std::uint64_t bytes) {
  return start >= 0 && size >= 0 && static_cast<std::uint64_t>(start) <= bytes &&
         static_cast<std::uint64_t>(size) <= bytes - static_cast<std::uint64_t>(start);
}

[[noreturn]] void fail_page(const SpanPart& part, const CheckedPages& pages, std::int64_t page) {
  throw CorruptError(part.sidecar + ": bytes " + std::to_string(static_cast<std::size_t>(page) * pages.page_bytes) +
                     " and following of an array are not what was written: remove the file, and it is made again");
}

void need_span(const SpanTable& table, const SpanPart& part, std::int64_t record, std::int64_t start, std::int64_t size,
               std::uint64_t bytes) {
  if (is_within(start, size, bytes)) return;
  const std::string remedy = part.sidecar.empty() ? std::string() : ": remove " + part.sidecar + ", and it is made again";
  throw CorruptError(table.name(record) + ": expected a place within " + std::to_string(bytes) + " bytes, found " +
                     std::to_string(size) + " bytes from " + std::to_string(start) + remedy);
}

}  // namespace

std::int64_t CheckedPages::bad_page(std::uint64_t low, std::uint64_t high) const {
  if (crcs.empty() || low == high) return -1;
  for (std::uint64_t page = low / page_bytes; page <= (high - 1) / page_bytes; ++page) {
    if (__atomic_load_n(checked + page, __ATOMIC_RELAXED) != 0) continue;
    const std::size_t begin = page * page_bytes;
    if (crc32c(bytes.subspan(begin, std::min(page_bytes, bytes.size() - begin))) != crcs[page]) {
      return static_cast<std::int64_t>(page);
    }
    __atomic_store_n(checked + page, std::uint8_t{1}, __ATOMIC_RELAXED);
  }
  return -1;
}

SpanTable::SpanTable(std::vector<SpanPart> parts) : parts_(std::move(parts)), firsts_{0} {
  for (const SpanPart& part : parts_) {
    std::uint64_t bytes = 0;
    std::uint64_t next = 0;
    if (__builtin_mul_overflow(part.records, std::uint64_t{part.words} * kWord, &bytes) || bytes != part.table.bytes.size()) {
      throw std::invalid_argument("expected a table of as many words as its records have");
    }
    for (const CheckedPages* pages : {&part.table, &part.memory}) {
      if (pages->crcs.empty()) continue;
      if (pages->page_bytes == 0 || pages->checked == nullptr ||
          pages->crcs.size() != (pages->bytes.size() + pages->page_bytes - 1) / pages->page_bytes) {
        throw std::invalid_argument("expected a crc for every page");
      }
    }
    if (__builtin_add_overflow(firsts_.back(), part.records, &next) || next > INT64_MAX) {
      throw CorruptError("too many records");
    }
    firsts_.push_back(next);
  }
}

std::size_t SpanTable::part_of(std::uint64_t record) const {
  return static_cast<std::size_t>(std::upper_bound(firsts_.begin(), firsts_.end(), record) - firsts_.begin()) - 1;
}

std::string SpanTable::name(std::int64_t record) const {
  const std::size_t part = part_of(static_cast<std::uint64_t>(record));
  return parts_[part].name + ", record " + std::to_string(static_cast<std::uint64_t>(record) - firsts_[part]);
}

std::vector<SpanTable::Extent> SpanTable::extents(std::span<const std::int64_t> starts, std::span<const std::int64_t> stops,
                                                  std::span<const std::int32_t> words) const {
  std::vector<Extent> found;
  const std::size_t columns = parts_.empty() ? 0 : words.size() / parts_.size();
  keep_guard();
  for (std::size_t i = 0; i < starts.size(); ++i) {
    const auto stop = static_cast<std::uint64_t>(stops[i]);
    for (auto at = static_cast<std::uint64_t>(starts[i]); at < stop;) {
      const std::size_t part = part_of(at);
      const std::uint64_t end = std::min(stop, firsts_[part + 1]);
      add_extents(part, at - firsts_[part], end - firsts_[part], words.subspan(part * columns, columns), found);
      at = end;
    }
  }
  return found;
}

// Of records [first, last) of a part, a tile at a time: what is read under guard may not take memory.
void SpanTable::add_extents(std::size_t number, std::uint64_t first, std::uint64_t last, std::span<const std::int32_t> words,
                            std::vector<Extent>& found) const {
  const SpanPart& part = parts_[number];
  const std::uint64_t row_bytes = std::uint64_t{part.words} * kWord;
  Extent extent{static_cast<std::int64_t>(number), 0, 0};
  const std::size_t most = std::max<std::size_t>(1, kTile / std::max<std::size_t>(1, words.size()));
  std::vector<Run> spans(most * words.size());
  for (std::uint64_t at = first; at < last;) {
    const std::uint64_t end = std::min(last, at + most);
    std::int64_t bad_page = -1;
    auto look = [&] {
      bad_page = part.table.bad_page(at * row_bytes, end * row_bytes);
      if (bad_page >= 0) return;
      for (std::uint64_t record = at; record < end; ++record) {
        const std::byte* const row = part.table.bytes.data() + record * row_bytes;
        Run* const out = spans.data() + (record - at) * words.size();
        for (std::size_t c = 0; c < words.size(); ++c) {
          out[c] = words[c] < 0 ? Run{0, -1} : Run{word_at(row, words[c]), word_at(row, words[c] + 1)};
        }
      }
    };
    const Fault fault = run_guarded(look);
    if (fault.happened) fail_in_memory(fault.at);
    if (bad_page >= 0) fail_page(part, part.table, bad_page);
    for (std::size_t i = 0; i < (end - at) * words.size(); ++i) {
      const auto [start, size] = spans[i];
      if (size == -1 || size == 0) continue;
      const auto record = static_cast<std::int64_t>(firsts_[number] + at + i / words.size());
      need_span(*this, part, record, start, size, part.file_bytes);
      if (extent.high > extent.low && start <= extent.high + kGap && start + size + kGap >= extent.low) {
        extent.low = std::min(extent.low, start);
        extent.high = std::max(extent.high, start + size);
      } else {
        if (extent.high > extent.low) found.push_back(extent);
        extent.low = start;
        extent.high = start + size;
      }
    }
    at = end;
  }
  if (extent.high > extent.low) found.push_back(extent);
}

// The numbers of a record in its table; null where the field is missing in the whole part.
struct SpanColumn::Place {
  const std::byte* row;
  std::size_t part;
};

SpanColumn::SpanColumn(const SpanTable& table, std::vector<std::int32_t> words, std::vector<std::int32_t> crc_words,
                       bool in_memory)
    : table_(table), words_(std::move(words)), crc_words_(std::move(crc_words)), in_memory_(in_memory), has_crcs_(false) {
  const std::span<const SpanPart> parts = table.parts();
  if (words_.size() != parts.size() || crc_words_.size() != parts.size()) {
    throw std::invalid_argument("expected words of every part");
  }
  std::int64_t base = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto most = static_cast<std::int32_t>(parts[i].words);
    if (words_[i] < -1 || (words_[i] >= 0 && words_[i] + 1 >= most) || crc_words_[i] < -1 || crc_words_[i] >= most) {
      throw std::invalid_argument("expected words of the table");
    }
    has_crcs_ |= crc_words_[i] >= 0;
    bases_.push_back(base);
    const std::uint64_t bytes = in_memory ? parts[i].memory.bytes.size() : parts[i].file_bytes;
    if (bytes > INT64_MAX || __builtin_add_overflow(base, static_cast<std::int64_t>(bytes), &base)) {
      throw CorruptError("too many bytes");
    }
  }
  for (std::size_t i = 0; has_crcs_ && i < parts.size(); ++i) {
    if (words_[i] >= 0 && crc_words_[i] < 0) throw std::invalid_argument("expected crcs in every part, or in none");
  }
}

// Where records are in the tables, whose memory is prefetched.
void SpanColumn::locate(std::span<const std::int64_t> records, Place* out) const {
  const std::span<const SpanPart> parts = table_.parts();
  for (std::size_t i = 0; i < records.size(); ++i) {
    const auto record = static_cast<std::uint64_t>(records[i]);
    const std::size_t number = table_.part_of(record);
    const SpanPart& part = parts[number];
    out[i] = {nullptr, number};
    if (words_[number] < 0) continue;
    out[i].row = part.table.bytes.data() + (record - table_.first(number)) * part.words * kWord;
    __builtin_prefetch(out[i].row + static_cast<std::size_t>(words_[number]) * kWord);
  }
}

void SpanColumn::find(std::span<const std::int64_t> records, Run* out) const {
  const std::span<const SpanPart> parts = table_.parts();
  Place tile[kTile];
  keep_guard();
  for (std::size_t done = 0; done < records.size(); done += kTile) {
    const std::size_t size = std::min(kTile, records.size() - done);
    locate(records.subspan(done, size), tile);
    std::size_t at = 0;  // where it stopped
    std::int64_t bad_page = -1;
    bool is_damaged_memory = false;
    auto look = [&] {
      for (; at < size; ++at) {
        const Place& place = tile[at];
        Run& run = out[done + at];
        if (place.row == nullptr) {
          run = {0, -1};
          continue;
        }
        const SpanPart& part = parts[place.part];
        const auto begin = static_cast<std::uint64_t>(place.row - part.table.bytes.data());
        bad_page = part.table.bad_page(begin, begin + part.words * kWord);
        if (bad_page >= 0) return;
        run = {word_at(place.row, words_[place.part]), word_at(place.row, words_[place.part] + 1)};
        if (run.rows == -1) continue;
        if (!is_within(run.start, run.rows, in_memory_ ? part.memory.bytes.size() : part.file_bytes)) return;
        if (in_memory_) {
          const auto low = static_cast<std::uint64_t>(run.start);
          bad_page = part.memory.bad_page(low, low + static_cast<std::uint64_t>(run.rows));
          is_damaged_memory = bad_page >= 0;
          if (is_damaged_memory) return;
        }
        run.start += bases_[place.part];
      }
    };
    const Fault fault = run_guarded(look);
    if (fault.happened) fail_in_memory(fault.at);
    if (at == size) continue;
    const SpanPart& part = parts[tile[at].part];
    if (bad_page >= 0) fail_page(part, is_damaged_memory ? part.memory : part.table, bad_page);
    const Run& run = out[done + at];
    need_span(table_, part, records[done + at], run.start, run.rows, in_memory_ ? part.memory.bytes.size() : part.file_bytes);
  }
}

void SpanColumn::find_crcs(std::span<const std::int64_t> records, std::uint32_t* out) const {
  Place tile[kTile];
  for (std::size_t done = 0; done < records.size(); done += kTile) {
    const std::size_t size = std::min(kTile, records.size() - done);
    locate(records.subspan(done, size), tile);
    auto look = [&] {  // find has checked the pages
      for (std::size_t i = 0; i < size; ++i) {
        const Place& place = tile[i];
        out[done + i] = place.row == nullptr ? 0 : static_cast<std::uint32_t>(word_at(place.row, crc_words_[place.part]));
      }
    };
    const Fault fault = run_guarded(look);
    if (fault.happened) fail_in_memory(fault.at);
  }
}

}  // namespace penstock
