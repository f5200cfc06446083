// Landing as Python has it.
#pragma once

#include <memory>

#include "core/landing.h"

namespace penstock::bind {

// Readers share the memory itself, not the Python object: they may be gone in a thread that does not hold the GIL.
struct BoundLanding {
  std::shared_ptr<Landing> landing;
};

}  // namespace penstock::bind
