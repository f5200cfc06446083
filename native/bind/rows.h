// RowReader as Python has it.
#pragma once

#include <vector>

#include "bind/array.h"
#include "core/row_reader.h"

namespace penstock::bind {

// A reader and the arrays whose memory it reads.
struct BoundRows {
  using Array = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
  RowReader reader;
  std::vector<Array> kept;
};

}  // namespace penstock::bind
