// JSON objects, one a line: checked to be that and nothing else, and where the values of chosen keys are in them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

// What a value may be. The numbers are those of the Python side.
enum class JsonKind : std::uint8_t { any = 0, whole = 1, number = 2, boolean = 3, text = 4, list = 5, nothing = 6 };

// A value that is wanted: the keys that lead to it, what it must be, and whether it may be missing or null.
struct JsonPath {
  std::vector<std::string> keys;
  JsonKind kind;
  bool nullable;
};

enum class JsonFault : std::uint8_t {
  none = 0,
  syntax = 1,      // not one JSON object
  depth = 2,       // nested too deeply
  twice = 3,       // a key of a path comes twice in an object
  kind = 4,        // a value is something else
  missing = 5,     // a value is not there, or null
  unknown = 6,     // a key that is on no path
  not_object = 7,  // a path leads through a value that is no object
};

// The first line with a fault: where in the text it was noticed, and the path it is about, if one, -1 otherwise.
struct JsonFinding {
  JsonFault fault = JsonFault::none;
  std::size_t line = 0;
  std::int64_t place = 0;
  std::int64_t path = -1;
};

// Immutable; safe to use from several threads.
class JsonFinder {
 public:
  // strict: a key that is on no path is a fault. No path may be the beginning of another.
  JsonFinder(const std::vector<JsonPath>& paths, bool strict);

  std::size_t num_paths() const { return num_paths_; }

  // Line i is [offsets[i], offsets[i + 1]) of the text: one object of RFC 8259, or of its superset with NaN, Infinity and
  // -Infinity, in UTF-8. starts and sizes get, for every line and path, where in the text the value is; sizes are -1 for values
  // that are missing or null. They have no meaning behind the first line with a fault.
  JsonFinding find(std::span<const std::byte> text, std::span<const std::int64_t> offsets, std::int64_t* starts,
                   std::int64_t* sizes) const;

  static constexpr int kMostDepth = 256;

 private:
  friend class JsonWalk;
  struct Node {
    std::string key;
    std::vector<std::size_t> children;
    std::int64_t path = -1;  // of a leaf
    JsonKind kind = JsonKind::any;
    bool nullable = true;
  };
  // The child of that key, or -1. Keys mostly come in one order, so the child behind the last one found is tried first.
  std::int64_t child(std::size_t node, std::string_view key, std::size_t& next) const;

  std::vector<Node> nodes_;
  std::vector<std::size_t> leaves_;  // the node of each path
  std::size_t num_paths_;
  bool strict_;
};

}  // namespace penstock
