// The checks of the C++ tests. A check that fails is reported and counted and the test goes on; main returns finish().
#pragma once
#include <algorithm>
#include <atomic>
#include <iostream>
#include <sstream>
#include <string_view>
#include <vector>
// File and line come from builtins because clang 14 has no std::source_location.
namespace penstock {
inline std::atomic<int> num_failures{0};  // of this program

inline void check(bool ok, std::string_view message, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  if (!ok && ++num_failures <= 20) std::cerr << file << ':' << line << ": " << message << '\n';
}
template <class... Part>
std::string say(const Part&... part) {
  return (std::ostringstream() << ... << part).str();
}

template <class T>
void check_equal(const T& found, const std::type_identity_t<T>& expected, std::string_view what = "value",
                 const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  if (!(found == expected)) check(false, say(what, ": expected ", expected, ", found ", found), file, line);
}
template <class T>
void check_equal(const std::vector<T>& found, const std::type_identity_t<std::vector<T>>& expected,
                 std::string_view what = "list", const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  check_equal(found.size(), expected.size(), say("length of ", what), file, line);
  const auto [one, other] = std::mismatch(found.begin(), found.end(), expected.begin(), expected.end());
  if (one == found.end() || other == expected.end()) return;
  check_equal(*one, *other, say(what, " at ", one - found.begin()), file, line);
}
template <class E, class F>
void check_throws(F fn, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  try {
    fn();
  } catch (const E&) {
    return;
  } catch (...) {
    return check(false, "expected another exception", file, line);
  }
  check(false, "expected an exception, found none", file, line);
}
inline int finish() {
  if (num_failures > 0) std::cerr << num_failures << " checks failed\n";
  return num_failures == 0 ? 0 : 1;
}
}  // namespace penstock
