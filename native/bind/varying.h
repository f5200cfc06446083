// VaryingReader and DocumentLine as Python has them.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "bind/array.h"
#include "core/document_line.h"
#include "core/varying_reader.h"

namespace penstock::bind {

// A reader, what it reads with, and the number of its rows.
struct BoundVarying {
  std::shared_ptr<const VaryingReader> reader;
  nb::object kept;
  std::uint64_t length;
};

// A line, the readers of its documents, and the arrays that say where they are.
struct BoundDocuments {
  using Whiches = std::optional<Array<const std::int32_t>>;
  using Rows = std::optional<Ints>;
  std::vector<BoundVarying> readers;
  Ints bounds;
  Whiches which;
  Rows rows;
  std::unique_ptr<const DocumentLine> line;
};

}  // namespace penstock::bind
