// SpanTable and its columns as Python has them.
#pragma once

#include <memory>
#include <vector>

#include "bind/array.h"
#include "core/span_table.h"

namespace penstock::bind {

// A table and the arrays that it is in.
struct BoundTable {
  std::vector<nb::object> kept;
  SpanTable table;
};

// A field of a table, with the reader of its bytes, and what both need.
struct BoundSpans {
  nb::object table;
  nb::object rows;
  std::shared_ptr<const RunTable> column;
  std::shared_ptr<const RunReader> reader;
};

}  // namespace penstock::bind
