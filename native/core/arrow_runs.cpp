#include "core/arrow_runs.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>

#include "core/error.h"

namespace penstock {
namespace {

constexpr std::size_t kTile = 64;
constexpr std::int64_t kMostRecordBytes = UINT32_MAX;

// Whether `count` items of `bytes` each from `start` on end by `length`.
bool fits(std::uint64_t start, std::uint64_t count, std::uint64_t bytes, std::uint64_t length) {
  std::uint64_t size = 0;
  return !__builtin_mul_overflow(count, bytes, &size) && start <= length && size <= length - start;
}

}  // namespace

// Of some records: their arrays, whether they are there, and their offsets.
struct ArrowRuns::Tile {
  std::array<std::size_t, kTile> of;
  std::array<bool, kTile> is_there;
  std::array<std::int64_t, 2 * kTile> edges;
};

ArrowRuns::ArrowRuns(const RowReader& line, std::vector<ArrowChunk> chunks, std::vector<std::int64_t> bits,
                     const ArrowLayout& layout)
    : line_(line), chunks_(std::move(chunks)), bits_(std::move(bits)), levels_(0), layout_(layout) {
  const std::uint64_t width = layout.offset_bytes;
  if (line.stride() != 1 || (width != 0 && width != 4 && width != 8) || layout.item_bytes == 0 || chunks_.empty() ||
      bits_.size() % chunks_.size() != 0) {
    throw std::invalid_argument("expected arrays on a line of bytes, and bits of each");
  }
  levels_ = bits_.size() / chunks_.size();
  for (std::size_t i = 0; i < chunks_.size(); ++i) {
    const ArrowChunk& chunk = chunks_[i];
    std::uint64_t next = 0;
    bool is_good = chunk.records > 0 && chunk.records < INT64_MAX &&
                   !__builtin_add_overflow(firsts_.back(), chunk.records, &next) && next <= INT64_MAX;
    is_good = is_good && (width == 0 ? fits(chunk.address, chunk.records, layout.item_bytes, line.length())
                                     : fits(chunk.address, chunk.records + 1, width, line.length()) &&
                                           fits(chunk.values, chunk.limit, layout.item_bytes, line.length()));
    for (std::size_t level = 0; is_good && level < levels_; ++level) {
      const std::int64_t bit = bits_[i * levels_ + level];
      std::uint64_t last = 0;
      is_good = bit == -1 || (bit >= 0 && !__builtin_add_overflow(static_cast<std::uint64_t>(bit), chunk.records - 1, &last) &&
                              last / 8 < line.length());
    }
    if (!is_good) throw std::invalid_argument("expected arrays that are on the line");
    firsts_.push_back(next);
  }
}

void ArrowRuns::read_presence(std::span<const std::int64_t> records, Tile& tile) const {
  std::array<std::byte, kTile> bytes;
  std::array<std::uint64_t, kTile> places;
  std::array<std::size_t, kTile> asked;
  std::array<RowReader::Span, kTile> spans;
  for (std::size_t level = 0; level < levels_; ++level) {
    std::size_t count = 0;
    for (std::size_t i = 0; i < records.size(); ++i) {
      const std::int64_t first = bits_[tile.of[i] * levels_ + level];
      if (first < 0 || !tile.is_there[i]) continue;
      places[count] = static_cast<std::uint64_t>(first) + static_cast<std::uint64_t>(records[i]) - firsts_[tile.of[i]];
      spans[count] = {places[count] / 8, 1, &bytes[count]};
      asked[count++] = i;
    }
    line_.read_spans({spans.data(), count}, alone_);
    for (std::size_t k = 0; k < count; ++k) {
      tile.is_there[asked[k]] = (std::to_integer<unsigned>(bytes[k]) >> (places[k] % 8) & 1) != 0;
    }
  }
}

void ArrowRuns::find(std::span<const std::int64_t> records, Run* out) const {
  const std::uint64_t width = layout_.offset_bytes;
  const auto item = static_cast<std::int64_t>(layout_.item_bytes);
  Tile tile;
  std::array<RowReader::Span, kTile> spans;
  for (std::size_t done = 0; done < records.size(); done += kTile) {
    const std::size_t size = std::min(kTile, records.size() - done);
    const std::span<const std::int64_t> some = records.subspan(done, size);
    std::size_t count = 0;
    for (std::size_t i = 0; i < size; ++i) {
      const auto place = std::upper_bound(firsts_.begin(), firsts_.end(), static_cast<std::uint64_t>(some[i]));
      tile.of[i] = static_cast<std::size_t>(place - firsts_.begin()) - 1;
      tile.is_there[i] = true;
    }
    read_presence(some, tile);
    for (std::size_t i = 0; i < size; ++i) {
      const std::size_t number = tile.of[i];
      const std::uint64_t local = static_cast<std::uint64_t>(some[i]) - firsts_[number];
      const std::uint64_t address = chunks_[number].address;
      out[done + i] = {0, -1};
      if (!tile.is_there[i]) continue;
      if (width == 0) {
        out[done + i] = {static_cast<std::int64_t>(address + local * layout_.item_bytes), item};
      } else {
        spans[count++] = {address + local * width, 2 * width, reinterpret_cast<std::byte*>(&tile.edges[2 * i])};
      }
    }
    if (width == 0) continue;
    line_.read_spans({spans.data(), count}, alone_);
    for (std::size_t i = 0; i < size; ++i) {
      if (!tile.is_there[i]) continue;
      std::int64_t low = tile.edges[2 * i];
      std::int64_t high = tile.edges[2 * i + 1];
      if (width == 4) {
        std::array<std::int32_t, 2> both;
        std::memcpy(both.data(), &tile.edges[2 * i], sizeof both);
        low = both[0];
        high = both[1];
      }
      const ArrowChunk& chunk = chunks_[tile.of[i]];
      if (low < 0 || high < low || static_cast<std::uint64_t>(high) > chunk.limit || high - low > kMostRecordBytes / item) {
        throw CorruptError(name(some[i]) + ": expected offsets that rise within [0, " + std::to_string(chunk.limit) +
                           "], found " + std::to_string(low) + " and " + std::to_string(high));
      }
      out[done + i] = {static_cast<std::int64_t>(chunk.values) + low * item, (high - low) * item};
    }
  }
}

}  // namespace penstock
