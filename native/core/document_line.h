// Documents as one line of tokens: records of a field of varying length, one after the other, each followed by the separator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/varying_reader.h"

namespace penstock {

// Where the documents of a line are. The memory must outlive the line.
struct DocumentPlaces {
  std::span<const std::int64_t> bounds;  // document i has the tokens [bounds[i], bounds[i + 1]), its separator included
  std::span<const std::int32_t> which;   // the reader of each document; empty: all are of the first
  std::span<const std::int64_t> rows;    // the row of each document there; empty: document i is row i
};

// Safe to use from several threads. The readers must outlive it.
class DocumentLine {
 public:
  // separator: whole tokens of token_bytes each, or nothing.
  DocumentLine(std::vector<const VaryingReader*> readers, DocumentPlaces places, std::uint64_t token_bytes,
               std::vector<std::byte> separator);

  // Run i of tokens begins at starts[i] of the line, and goes to tokens offsets[i] up to offsets[i + 1] of `out`. The tokens
  // exist. A run whose start is below 0 is left out: nothing is written in its place.
  void read(std::span<const std::int64_t> starts, std::span<const std::int64_t> offsets, std::byte* out) const;

 private:
  struct Parts;
  std::size_t document_of(std::int64_t token) const;
  void add_run(std::int64_t start, std::int64_t stop, std::int64_t at, Parts& parts, std::byte* out) const;

  std::vector<const VaryingReader*> readers_;
  DocumentPlaces places_;
  std::uint64_t token_bytes_;
  std::vector<std::byte> separator_;
};

}  // namespace penstock
