#include "core/span_scan.h"

#include <algorithm>
#include <cstring>

#include "core/crc32c.h"
#include "core/error.h"
#include "core/little_endian.h"
#include "core/utf8.h"

namespace penstock {
namespace {

constexpr std::uint64_t kLeastRead = 4 << 10;
constexpr std::uint64_t kMostRead = 1 << 20;
constexpr std::uint64_t kSkipped = 64 << 10;  // what is between records is read with them if it is less than this

std::uint32_t unmasked(std::uint32_t crc) {
  const std::uint32_t rotated = crc - 0xa282ead8U;
  return (rotated >> 17) | (rotated << 15);
}

}  // namespace

void SpanScanner::feed(std::span<const std::byte> data) {
  const std::uint64_t begin = next_;
  if (data.size() > file_bytes_ - begin) throw std::invalid_argument("expected bytes within the file");
  while (!is_done_ && next_ - begin <= data.size()) {
    const std::span<const std::byte> rest = data.subspan(next_ - begin);
    const bool at_end = next_ + rest.size() == file_bytes_;
    if (rest.size() < need_ && !at_end) return;
    if (!step(rest)) return;
  }
}

// Pieces grow as long as records follow one another closely, and are small where there is much between them.
void SpanScanner::scan(const std::string& path, const FileVersion& version) {
  const auto file = File::open(path, file_bytes_, FileAccess::pread, version);
  std::vector<std::byte> buffer;
  std::uint64_t piece = kLeastRead;
  while (!is_done_) {
    const std::uint64_t begin = next_;
    const std::uint64_t count = std::min(std::max(piece, need_), file_bytes_ - begin);
    buffer.resize(std::max<std::size_t>(buffer.size(), count));
    const std::span<std::byte> data{buffer.data(), count};
    if (count > 0) file->read(begin, data);
    feed(data);
    piece = next_ > begin + count + kSkipped ? kLeastRead : std::min(2 * piece, kMostRead);
  }
  file->need_unwritten();
}

// TFRecord

TFRecordScanner::TFRecordScanner(std::string name, std::uint64_t file_bytes) : SpanScanner(std::move(name), file_bytes) {
  is_done_ = file_bytes == 0;
}

bool TFRecordScanner::step(std::span<const std::byte> data) {
  constexpr std::uint64_t kHeader = 12;
  constexpr std::uint64_t kFooter = 4;
  need_ = in_record_ ? kFooter : kHeader;
  if (data.size() < need_) {
    if (next_ + data.size() < file_bytes_) return false;
    throw TruncatedError(where(next_) + ": expected record " + std::to_string(table_.size() / 3) + ", found " +
                         std::to_string(data.size()) + " bytes");
  }
  if (in_record_) {
    table_.push_back(unmasked(load_le<std::uint32_t>(data.data())));
    next_ += kFooter;
    need_ = kHeader;
    in_record_ = false;
    is_done_ = next_ == file_bytes_;
    return true;
  }
  const auto bytes = load_le<std::uint64_t>(data.data());
  const std::string record = std::to_string(table_.size() / 3);
  if (crc32c(data.first(8)) != unmasked(load_le<std::uint32_t>(data.data() + 8))) {
    throw CorruptError(where(next_) + ": expected record " + record + ", found a length whose checksum is another");
  }
  if (bytes > file_bytes_ || bytes + kHeader + kFooter > file_bytes_ - next_) {
    throw TruncatedError(where(next_) + ": expected record " + record + " of " + std::to_string(bytes) +
                         " bytes, the file ends at " + std::to_string(file_bytes_));
  }
  table_.push_back(static_cast<std::int64_t>(next_ + kHeader));
  table_.push_back(static_cast<std::int64_t>(bytes));
  next_ += kHeader + bytes;
  need_ = kFooter;
  in_record_ = true;
  return true;
}

ScannedSpans TFRecordScanner::take() { return {{"data"}, 1, true, std::move(table_), {}}; }

// tar

namespace {

constexpr std::uint64_t kBlock = 512;
constexpr std::uint64_t kMostNames = 1 << 20;  // bytes of a header that names the next member
constexpr std::uint64_t kBehind = 64 << 10;    // bytes behind the end in which another archive is looked for
constexpr std::size_t kMostColumns = 4096;
constexpr std::uint64_t kPlainTable = 64 << 20;  // a table may have these bytes, or 4 times those of the file

std::uint64_t padded(std::uint64_t bytes) { return (bytes + kBlock - 1) / kBlock * kBlock; }

bool is_zero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte one) { return one == std::byte{0}; });
}

std::string_view text_of(const std::byte* at, std::size_t most) {
  const auto* const text = reinterpret_cast<const char*>(at);
  return {text, strnlen(text, most)};
}

// A number in octal digits, or in base 256 where the first bit is set. False if it is neither, or below 0.
bool read_number(const std::byte* at, std::size_t size, std::uint64_t& out) {
  out = 0;
  const auto first = std::to_integer<std::uint8_t>(at[0]);
  if (first == 0x80) {
    for (std::size_t i = 1; i < size; ++i) {
      if (out >> 55 != 0) return false;
      out = out << 8 | std::to_integer<std::uint64_t>(at[i]);
    }
    return true;
  }
  std::string_view digits = text_of(at, size);
  while (!digits.empty() && digits.front() == ' ') digits.remove_prefix(1);
  while (!digits.empty() && digits.back() == ' ') digits.remove_suffix(1);
  for (const char digit : digits) {
    if (digit < '0' || digit > '7' || out >> 60 != 0) return false;
    out = out << 3 | static_cast<std::uint64_t>(digit - '0');
  }
  return true;
}

// Whether a block has the checksum of a header; some old programs have added signed bytes.
bool is_header(std::span<const std::byte> block) {
  std::uint64_t told = 0;
  if (!read_number(block.data() + 148, 8, told)) return false;
  std::int64_t plain = 0;
  std::int64_t with_sign = 0;
  for (std::size_t i = 0; i < kBlock; ++i) {
    const auto byte = i >= 148 && i < 156 ? std::uint8_t{' '} : std::to_integer<std::uint8_t>(block[i]);
    plain += byte;
    with_sign += static_cast<std::int8_t>(byte);
  }
  return plain == static_cast<std::int64_t>(told) || with_sign == static_cast<std::int64_t>(told);
}

// The key and the column of a path: ((?:.*/|)[^.]+)[.]([^/]*) as Python's re matches it. False if it has none.
bool split(std::string_view path, std::string_view& key, std::string_view& column) {
  std::size_t from = path.rfind('/') == std::string_view::npos ? 0 : path.rfind('/') + 1;
  while (true) {
    const std::size_t dot = path.find('.', from);
    if (dot != std::string_view::npos && dot > from && path.find('/', dot) == std::string_view::npos) {
      key = path.substr(0, dot);
      column = path.substr(dot + 1);
      return true;
    }
    if (from == 0) return false;
    const std::size_t before = from < 2 ? std::string_view::npos : path.rfind('/', from - 2);
    from = before == std::string_view::npos ? 0 : before + 1;
  }
}

// Whether the first name of a path begins and ends with two underscores: of files about the archive.
bool is_meta(std::string_view path) {
  const std::string_view first = path.substr(0, path.find('/'));
  return first.size() >= 4 && first.starts_with("__") && first.ends_with("__");
}

}  // namespace

struct TarScanner::Header {
  char type;
  std::uint64_t size;
  std::string path;
};

TarScanner::TarScanner(std::string name, std::uint64_t file_bytes) : SpanScanner(std::move(name), file_bytes) { need_ = kBlock; }

void TarScanner::fail(const std::string& words) const { throw CorruptError(where(next_) + ": " + words); }

bool TarScanner::step(std::span<const std::byte> data) {
  if (is_behind_) return look_behind(data);
  if (data.size() < kBlock) {
    if (next_ + data.size() < file_bytes_) return false;
    if (!is_zero(data))
      throw TruncatedError(where(next_) + ": expected a member, found " + std::to_string(data.size()) + " bytes");
    is_done_ = true;
    return true;
  }
  const std::span<const std::byte> block = data.first(kBlock);
  if (is_zero(block)) {
    is_behind_ = true;
    need_ = std::min(kBehind, file_bytes_ - next_);
    return true;
  }
  Header header{static_cast<char>(block[156]), 0, {}};
  if (!is_header(block)) {
    if (next_ == 0) throw FormatError(name_ + ": expected a tar archive, found a first block that is no header of one");
    fail("expected the header of a member, found other bytes: the archive is damaged, or was cut and written over");
  }
  if (!read_number(block.data() + 124, 12, header.size)) fail("expected the size of a member, found other bytes");
  header.path = text_of(block.data(), 100);
  const std::string_view prefix = text_of(block.data() + 345, 155);
  if (!prefix.empty() && std::memcmp(block.data() + 257, "ustar", 6) == 0) header.path = std::string(prefix) + "/" + header.path;

  if (header.type == 'L' || header.type == 'K' || header.type == 'x' || header.type == 'X' || header.type == 'g') {
    if (header.size > kMostNames) fail("expected a header of at most 1 MiB, found " + std::to_string(header.size) + " bytes");
    need_ = kBlock + header.size;
    if (data.size() < need_) {
      if (next_ + data.size() < file_bytes_) return false;
      throw TruncatedError(where(next_) + ": expected a header of " + std::to_string(header.size) +
                           " bytes, the file ends before");
    }
    return read_extension(header, data.subspan(kBlock, header.size));
  }
  if (header.type == 'S') fail("expected whole files, found one with holes (GNU sparse): write the archive without --sparse");
  if (has_pax_size_) header.size = pax_size_;
  if (has_long_name_) header.path = long_name_;
  if (has_pax_path_) header.path = pax_path_;
  has_pax_size_ = has_long_name_ = has_pax_path_ = false;
  if (header.type == '\0' && header.path.ends_with('/')) header.type = '5';  // a directory of the oldest archives
  if (header.type >= '1' && header.type <= '6') header.size = 0;             // links, devices and directories have no content
  const std::uint64_t start = next_ + kBlock;
  if (header.size > file_bytes_ - start) {
    throw TruncatedError(where(next_) + ": expected member " + shown(header.path) + " of " + std::to_string(header.size) +
                         " bytes, the file ends at " + std::to_string(file_bytes_));
  }
  if (header.type == '\0' || header.type == '0' || header.type == '7') add_file(header.path, start, header.size);
  next_ = std::min(file_bytes_, start + padded(header.size));
  need_ = kBlock;
  is_done_ = next_ == file_bytes_;
  return true;
}

bool TarScanner::read_extension(const Header& header, std::span<const std::byte> content) {
  const std::string_view text{reinterpret_cast<const char*>(content.data()), content.size()};
  if (header.type == 'L') {
    long_name_ = text.substr(0, text.find('\0'));
    has_long_name_ = true;
  } else if (header.type != 'K') {
    read_pax(text, header.type == 'g');
  }
  next_ = std::min(file_bytes_, next_ + kBlock + padded(header.size));
  need_ = kBlock;
  if (next_ == file_bytes_) throw TruncatedError(where(next_) + ": expected the member that a header has named, the file ends");
  return true;
}

// Records "<bytes> <key>=<value>\n".
void TarScanner::read_pax(std::string_view records, bool is_global) {
  while (!records.empty() && records.front() != '\0') {
    std::size_t size = 0;
    std::size_t at = 0;
    for (; at < records.size() && at < 8 && records[at] >= '0' && records[at] <= '9'; ++at) {
      size = 10 * size + static_cast<std::size_t>(records[at] - '0');
    }
    const std::size_t equals = records.find('=', at);
    if (at == 0 || at >= records.size() || records[at] != ' ' || size > records.size() || equals == std::string_view::npos ||
        equals + 1 >= size || records[size - 1] != '\n') {
      fail("expected extended headers (pax), found other bytes");
    }
    const std::string_view key = records.substr(at + 1, equals - at - 1);
    const std::string_view value = records.substr(equals + 1, size - equals - 2);
    if (key.starts_with("GNU.sparse."))
      fail("expected whole files, found one with holes (GNU sparse): write it without --sparse");
    if (is_global && (key == "path" || key == "size")) fail("expected a header for each member, found one for all (pax global)");
    if (key == "path") {
      pax_path_ = value.substr(0, value.find('\0'));
      has_pax_path_ = true;
    } else if (key == "size") {
      pax_size_ = 0;
      for (const char digit : value) {
        if (digit < '0' || digit > '9' || pax_size_ > UINT64_MAX / 16) fail("expected a size in an extended header (pax)");
        pax_size_ = 10 * pax_size_ + static_cast<std::uint64_t>(digit - '0');
      }
      if (value.empty()) fail("expected a size in an extended header (pax)");
      has_pax_size_ = true;
    }
    records.remove_prefix(size);
  }
}

void TarScanner::add_file(std::string_view path, std::uint64_t start, std::uint64_t size) {
  std::string_view key;
  std::string_view rest;
  if (is_meta(path) || !split(path, key, rest)) return;
  std::string column(rest);
  for (char& letter : column) {
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
  }
  if (column.empty() || column == kKey || column.find('\n') != std::string::npos || !is_utf8(std::as_bytes(std::span(column)))) {
    fail("expected a name with an extension that can be a field, found " + shown(path));
  }
  const std::size_t last = samples_.empty() ? 0 : keys_.size() < 2 ? 0 : keys_[keys_.size() - 2];
  const std::span<const std::byte> bytes = std::as_bytes(std::span(key));
  const bool is_same = !samples_.empty() && keys_.back() - last == bytes.size() &&
                       std::equal(bytes.begin(), bytes.end(), memory_.begin() + static_cast<std::ptrdiff_t>(last));
  if (!is_same) {
    samples_.push_back(members_.size());
    memory_.insert(memory_.end(), bytes.begin(), bytes.end());
    keys_.push_back(memory_.size());
  }
  const auto [found, is_new] = numbers_.try_emplace(column, static_cast<std::uint32_t>(columns_.size()));
  if (is_new) {
    if (columns_.size() == kMostColumns) {
      fail("expected at most " + std::to_string(kMostColumns) + " extensions, found one more: " + shown(column));
    }
    columns_.push_back(column);
    seen_.push_back(0);
  }
  if (seen_[found->second] == samples_.size()) {
    fail("expected one member of a name in sample " + shown(key) + ", found a second " + shown(column) + ": write it once");
  }
  seen_[found->second] = samples_.size();
  members_.push_back({found->second, static_cast<std::int64_t>(start), static_cast<std::int64_t>(size)});
}

// An archive that was appended to another would be left out without a word.
bool TarScanner::look_behind(std::span<const std::byte> data) {
  const std::size_t end = std::min<std::size_t>(data.size(), kBehind);
  for (std::size_t at = 0; at + kBlock <= end; at += kBlock) {
    const std::span<const std::byte> block = data.subspan(at, kBlock);
    if (!is_zero(block) && is_header(block)) {
      throw CorruptError(where(next_ + at) +
                         ": found a member behind the end of the archive, as of two archives in one file: "
                         "write them as one, or to two files");
    }
  }
  is_done_ = true;
  return true;
}

ScannedSpans TarScanner::take() {
  const std::size_t records = samples_.size();
  const std::size_t words = 2 * columns_.size() + 2;
  if (static_cast<unsigned __int128>(records) * words * sizeof(std::int64_t) >
      std::max<unsigned __int128>(kPlainTable, static_cast<unsigned __int128>(file_bytes_) * 4)) {
    throw CorruptError(name_ + ": expected samples with the same few extensions, found " + std::to_string(columns_.size()) +
                       " extensions in " + std::to_string(records) + " samples");
  }
  ScannedSpans found{columns_, columns_.size(), false, std::vector<std::int64_t>(records * words), std::move(memory_)};
  found.columns.emplace_back(kKey);
  for (std::size_t sample = 0; sample < records; ++sample) {
    std::int64_t* const row = found.table.data() + sample * words;
    for (std::size_t column = 0; column < columns_.size(); ++column) row[2 * column + 1] = -1;
    const std::size_t end = sample + 1 < records ? samples_[sample + 1] : members_.size();
    for (std::size_t i = samples_[sample]; i < end; ++i) {
      row[2 * members_[i].column] = members_[i].start;
      row[2 * members_[i].column + 1] = members_[i].size;
    }
    const std::size_t begin = sample == 0 ? 0 : keys_[sample - 1];
    row[words - 2] = static_cast<std::int64_t>(begin);
    row[words - 1] = static_cast<std::int64_t>(keys_[sample] - begin);
  }
  return found;
}

}  // namespace penstock
