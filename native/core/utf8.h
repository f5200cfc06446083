// Is it UTF-8?
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace penstock {

// Whether the bytes are well-formed UTF-8 (Unicode 15, table 3-7): no overlong forms, no surrogates, nothing above U+10FFFF.
bool is_utf8(std::span<const std::byte> text);

// The text with every byte that is no part of such UTF-8 as an escape, \xff: what Python's "backslashreplace" makes of it.
std::string with_escapes(std::string_view text);

}  // namespace penstock
