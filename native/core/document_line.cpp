#include "core/document_line.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace penstock {

// What is to be read, by reader.
struct DocumentLine::Parts {
  explicit Parts(std::size_t readers) : of_reader(readers) {}
  std::vector<std::vector<RecordPart>> of_reader;
};

DocumentLine::DocumentLine(std::vector<const VaryingReader*> readers, DocumentPlaces places, std::uint64_t token_bytes,
                           std::vector<std::byte> separator)
    : readers_(std::move(readers)), places_(places), token_bytes_(token_bytes), separator_(std::move(separator)) {
  if (readers_.empty() || token_bytes_ == 0 || separator_.size() % token_bytes_ != 0 || places_.bounds.empty()) {
    throw std::invalid_argument("expected readers, bounds of documents and a separator of whole tokens");
  }
  const std::size_t documents = places_.bounds.size() - 1;
  const auto ends = static_cast<std::int64_t>(separator_.size() / token_bytes_);
  if (places_.bounds[0] != 0 || std::adjacent_find(places_.bounds.begin(), places_.bounds.end(), [=](auto low, auto high) {
                                  return high - low < ends;
                                }) != places_.bounds.end()) {
    throw std::invalid_argument("expected bounds from 0 on, with room for a separator in every document");
  }
  if ((!places_.which.empty() && places_.which.size() != documents) ||
      (!places_.rows.empty() && places_.rows.size() != documents) ||
      std::any_of(places_.which.begin(), places_.which.end(),
                  [&](std::int32_t one) { return static_cast<std::size_t>(one) >= readers_.size(); })) {
    throw std::invalid_argument("expected a row, and a reader that is there, of every document");
  }
}

std::size_t DocumentLine::document_of(std::int64_t token) const {
  const auto bounds = places_.bounds;
  return static_cast<std::size_t>(std::upper_bound(bounds.begin(), bounds.end(), token) - bounds.begin()) - 1;
}

// Notes what a run takes of the records, and writes the separators in it.
void DocumentLine::add_run(std::int64_t start, std::int64_t stop, std::int64_t at, Parts& parts, std::byte* out) const {
  const auto bytes = static_cast<std::int64_t>(token_bytes_);
  const std::int64_t ends = static_cast<std::int64_t>(separator_.size()) / bytes;
  const std::int64_t shift = at - start;
  for (std::size_t document = document_of(start); start < stop; ++document) {
    const std::int64_t low = places_.bounds[document];
    const std::int64_t content = places_.bounds[document + 1] - ends;
    const std::int64_t end = std::min(content, stop);
    if (end > start) {
      const std::size_t reader = places_.which.empty() ? 0 : static_cast<std::size_t>(places_.which[document]);
      const std::int64_t row = places_.rows.empty() ? static_cast<std::int64_t>(document) : places_.rows[document];
      parts.of_reader[reader].push_back(
          {row, (content - low) * bytes, (start - low) * bytes, (end - start) * bytes, (start + shift) * bytes});
      start = end;
    }
    const std::int64_t after = std::min(content + ends, stop);
    if (after > start) {
      std::memcpy(out + (start + shift) * bytes, separator_.data() + (start - content) * bytes,
                  static_cast<std::size_t>((after - start) * bytes));
      start = after;
    }
  }
}

void DocumentLine::read(std::span<const std::int64_t> starts, std::span<const std::int64_t> offsets, std::byte* out) const {
  Parts parts(readers_.size());
  for (std::size_t i = 0; i < starts.size(); ++i) {
    if (starts[i] < 0) continue;
    add_run(starts[i], starts[i] + offsets[i + 1] - offsets[i], offsets[i], parts, out);
  }
  for (std::size_t reader = 0; reader < readers_.size(); ++reader) {
    if (!parts.of_reader[reader].empty()) readers_[reader]->read_parts(parts.of_reader[reader], out);
  }
}

}  // namespace penstock
