#include "core/json_lines.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "core/utf8.h"

namespace penstock {

// One pass over one line. Everything that is not JSON is noticed; values are not converted.
class JsonWalk {
 public:
  JsonWalk(const JsonFinder& finder, const char* text)
      : finder_(finder), text_(text), seen_(finder.nodes_.size(), 0), next_(finder.nodes_.size(), 0) {}

  // Whether the line is fine; if not, `finding` says what is wrong.
  bool line(const char* low, const char* high, std::int64_t* starts, std::int64_t* sizes) {
    at_ = low;
    end_ = high;
    starts_ = starts;
    sizes_ = sizes;
    ++turn_;
    finding = {};
    if (!is_utf8(std::as_bytes(std::span(low, high)))) return fail(JsonFault::syntax);
    std::fill_n(sizes, finder_.num_paths_, -1);
    skip_white();
    if (at_ == end_ || *at_ != '{') return fail(JsonFault::syntax);
    if (!object(0, 0)) return false;
    skip_white();
    return at_ == end_ ? all_there(low) : fail(JsonFault::syntax);
  }

  JsonFinding finding;

 private:
  bool fail(JsonFault fault, std::int64_t path = -1) {
    finding = {fault, 0, at_ - text_, path};
    return false;
  }

  bool all_there(const char* low) {
    for (std::size_t path = 0; path < finder_.num_paths_; ++path) {
      if (sizes_[path] < 0 && !finder_.nodes_[finder_.leaves_[path]].nullable) {
        at_ = low;
        return fail(JsonFault::missing, static_cast<std::int64_t>(path));
      }
    }
    return true;
  }

  void skip_white() {
    while (at_ < end_ && (*at_ == ' ' || *at_ == '\t' || *at_ == '\n' || *at_ == '\r')) ++at_;
  }

  // The members of an object; `node` is what leads here, or -1 where no path does.
  bool object(std::int64_t node, int depth) {
    if (depth == JsonFinder::kMostDepth) return fail(JsonFault::depth);
    ++at_;
    skip_white();
    if (at_ < end_ && *at_ == '}') {
      ++at_;
      return true;
    }
    while (true) {
      if (!member(node, depth)) return false;
      skip_white();
      if (at_ == end_) return fail(JsonFault::syntax);
      const char next = *at_;
      if (next != ',' && next != '}') return fail(JsonFault::syntax);
      ++at_;
      if (next == '}') return true;
      skip_white();
    }
  }

  bool member(std::int64_t node, int depth) {
    const char* const low = at_;
    if (at_ == end_ || *at_ != '"' || !string()) return fail(JsonFault::syntax);
    const std::string_view raw(low + 1, static_cast<std::size_t>(at_ - low - 2));
    std::int64_t child = -1;
    if (node >= 0) {
      const auto number = static_cast<std::size_t>(node);
      child = raw.find('\\') == raw.npos ? finder_.child(number, raw, next_[number])
                                         : finder_.child(number, unescaped(raw), next_[number]);
      if (child < 0 && finder_.strict_) {
        at_ = low;
        return fail(JsonFault::unknown);
      }
    }
    skip_white();
    if (at_ == end_ || *at_ != ':') return fail(JsonFault::syntax);
    ++at_;
    skip_white();
    return child < 0 ? value(-1, depth + 1) : known(static_cast<std::size_t>(child), depth + 1);
  }

  // A value that is on a path.
  bool known(std::size_t number, int depth) {
    const JsonFinder::Node& node = finder_.nodes_[number];
    const char* const low = at_;
    const std::int64_t path = node.path;
    if (seen_[number] == turn_) return fail(JsonFault::twice, path);
    seen_[number] = turn_;
    if (at_ == end_) return fail(JsonFault::syntax);
    const char first = *at_;
    if (path < 0) {
      if (first == '{') return object(static_cast<std::int64_t>(number), depth);
      if (!value(-1, depth)) return false;
      if (first == 'n') return true;
      at_ = low;
      return fail(JsonFault::not_object, first_leaf(number));
    }
    if (!value(-1, depth)) return false;
    if (first == 'n') return true;  // null, as value() has seen
    if (!fits(node.kind, low)) {
      at_ = low;
      return fail(JsonFault::kind, path);
    }
    starts_[path] = low - text_;
    sizes_[path] = at_ - low;
    return true;
  }

  std::int64_t first_leaf(std::size_t node) const {
    while (finder_.nodes_[node].path < 0) node = finder_.nodes_[node].children.front();
    return finder_.nodes_[node].path;
  }

  bool fits(JsonKind kind, const char* low) const {
    const char first = *low;
    const bool is_number = first == '-' || (first >= '0' && first <= '9') || first == 'N' || first == 'I';
    switch (kind) {
      case JsonKind::any: return true;
      case JsonKind::whole: return is_number && std::all_of(low, at_, [](char c) { return c == '-' || (c >= '0' && c <= '9'); });
      case JsonKind::number: return is_number;
      case JsonKind::boolean: return first == 't' || first == 'f';
      case JsonKind::text: return first == '"';
      case JsonKind::list: return first == '[';
      case JsonKind::nothing: return false;
    }
    return false;
  }

  bool value(std::int64_t node, int depth) {
    if (at_ == end_) return fail(JsonFault::syntax);
    switch (*at_) {
      case '{': return object(node, depth);
      case '[': return array(depth);
      case '"': return string() || fail(JsonFault::syntax);
      case 't': return word("true");
      case 'f': return word("false");
      case 'n': return word("null");
      case 'N': return word("NaN");
      case 'I': return word("Infinity");
      default: return number();
    }
  }

  bool array(int depth) {
    if (depth == JsonFinder::kMostDepth) return fail(JsonFault::depth);
    ++at_;
    skip_white();
    if (at_ < end_ && *at_ == ']') {
      ++at_;
      return true;
    }
    while (true) {
      if (!value(-1, depth + 1)) return false;
      skip_white();
      if (at_ == end_) return fail(JsonFault::syntax);
      const char next = *at_;
      if (next != ',' && next != ']') return fail(JsonFault::syntax);
      ++at_;
      if (next == ']') return true;
      skip_white();
    }
  }

  bool word(std::string_view wanted) {
    const auto left = static_cast<std::size_t>(end_ - at_);
    if (left < wanted.size() || std::memcmp(at_, wanted.data(), wanted.size()) != 0) return fail(JsonFault::syntax);
    at_ += wanted.size();
    return true;
  }

  bool digits() {
    const char* const low = at_;
    while (at_ < end_ && *at_ >= '0' && *at_ <= '9') ++at_;
    return at_ > low;
  }

  bool number() {
    if (*at_ == '-') ++at_;
    if (at_ < end_ && *at_ == 'I') return word("Infinity");
    const char* const low = at_;
    if (!digits() || (*low == '0' && at_ - low > 1)) return fail(JsonFault::syntax);
    if (at_ < end_ && *at_ == '.') {
      ++at_;
      if (!digits()) return fail(JsonFault::syntax);
    }
    if (at_ < end_ && (*at_ == 'e' || *at_ == 'E')) {
      ++at_;
      if (at_ < end_ && (*at_ == '+' || *at_ == '-')) ++at_;
      if (!digits()) return fail(JsonFault::syntax);
    }
    return true;
  }

  // From one quote behind the other. False if it is no string: control characters, bad escapes, half of a surrogate pair.
  bool string() {
    ++at_;
    while (at_ < end_) {
      at_ = plain_end(at_);
      if (at_ == end_ || static_cast<unsigned char>(*at_) < 0x20) return false;
      if (*at_ == '"') {
        ++at_;
        return true;
      }
      if (!escape()) return false;
    }
    return false;
  }

  // The first byte from `at` on that is a quote, a backslash or a control character, eight at a time.
  const char* plain_end(const char* at) const {
    constexpr std::uint64_t ones = 0x0101010101010101, tops = 0x8080808080808080;
    for (; end_ - at >= 8; at += 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, at, 8);
      const std::uint64_t quotes = word ^ (ones * '"'), slashes = word ^ (ones * '\\');
      const std::uint64_t found = ((quotes - ones) & ~quotes) | ((slashes - ones) & ~slashes) | ((word - ones * 0x20) & ~word);
      if ((found & tops) != 0) break;
    }
    while (at < end_ && *at != '"' && *at != '\\' && static_cast<unsigned char>(*at) >= 0x20) ++at;
    return at;
  }

  bool escape() {
    if (end_ - at_ < 2) return false;
    const char kind = at_[1];
    at_ += 2;
    if (kind != 'u') return kind != 0 && std::strchr("\"\\/bfnrt", kind) != nullptr;
    const int first = hex();
    if (first < 0 || (first >= 0xDC00 && first < 0xE000)) return false;
    if (first < 0xD800 || first >= 0xE000) return true;
    if (end_ - at_ < 2 || at_[0] != '\\' || at_[1] != 'u') return false;
    at_ += 2;
    const int second = hex();
    return second >= 0xDC00 && second < 0xE000;
  }

  // Four digits, or -1.
  int hex() {
    if (end_ - at_ < 4) return -1;
    int found = 0;
    for (int i = 0; i < 4; ++i, ++at_) {
      const char c = *at_;
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) return -1;
      found = found * 16 + digit;
    }
    return found;
  }

  // A key whose escapes are known to be right.
  static std::string unescaped(std::string_view raw) {
    std::string out;
    for (std::size_t i = 0; i < raw.size(); ++i) {
      if (raw[i] != '\\') {
        out += raw[i];
        continue;
      }
      const char kind = raw[++i];
      if (kind != 'u') {
        const std::size_t which = std::string_view("\"\\/bfnrt").find(kind);
        out += "\"\\/\b\f\n\r\t"[which];
        continue;
      }
      auto code = static_cast<std::uint32_t>(std::stoul(std::string(raw.substr(i + 1, 4)), nullptr, 16));
      i += 4;
      if (code >= 0xD800 && code < 0xDC00) {
        const auto low = static_cast<std::uint32_t>(std::stoul(std::string(raw.substr(i + 3, 4)), nullptr, 16));
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
        i += 6;
      }
      append_utf8(code, out);
    }
    return out;
  }

  static void append_utf8(std::uint32_t code, std::string& out) {
    if (code < 0x80) {
      out += static_cast<char>(code);
      return;
    }
    const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    constexpr unsigned heads[] = {0, 0xC0, 0xE0, 0xF0};
    out += static_cast<char>(heads[more] | code >> (6 * more));
    for (int i = more - 1; i >= 0; --i) out += static_cast<char>(0x80 | (code >> (6 * i) & 0x3F));
  }

  const JsonFinder& finder_;
  const char* text_;
  const char* at_ = nullptr;
  const char* end_ = nullptr;
  std::int64_t* starts_ = nullptr;
  std::int64_t* sizes_ = nullptr;
  std::vector<std::uint64_t> seen_;  // the last line in which each node came
  std::vector<std::size_t> next_;    // the child of each node that is expected next
  std::uint64_t turn_ = 0;
};

JsonFinder::JsonFinder(const std::vector<JsonPath>& paths, bool strict) : nodes_(1), num_paths_(paths.size()), strict_(strict) {
  for (std::size_t path = 0; path < paths.size(); ++path) {
    std::size_t at = 0, any = 0;
    for (const std::string& key : paths[path].keys) {
      std::int64_t next = child(at, key, any);
      if (next < 0) {
        next = static_cast<std::int64_t>(nodes_.size());
        nodes_[at].children.push_back(nodes_.size());
        nodes_.push_back({key, {}, -1, JsonKind::any, true});
      }
      at = static_cast<std::size_t>(next);
      if (nodes_[at].path >= 0) throw std::invalid_argument("expected no path that is the beginning of another");
    }
    if (at == 0 || !nodes_[at].children.empty()) throw std::invalid_argument("expected no path that is the beginning of another");
    nodes_[at].path = static_cast<std::int64_t>(path);
    nodes_[at].kind = paths[path].kind;
    nodes_[at].nullable = paths[path].nullable;
    leaves_.push_back(at);
  }
}

std::int64_t JsonFinder::child(std::size_t node, std::string_view key, std::size_t& next) const {
  const std::vector<std::size_t>& children = nodes_[node].children;
  for (std::size_t tried = 0, at = next; tried < children.size(); ++tried, ++at) {
    if (at >= children.size()) at = 0;
    if (nodes_[children[at]].key == key) {
      next = at + 1;
      return static_cast<std::int64_t>(children[at]);
    }
  }
  return -1;
}

JsonFinding JsonFinder::find(std::span<const std::byte> text, std::span<const std::int64_t> offsets, std::int64_t* starts,
                             std::int64_t* sizes) const {
  const char* const letters = reinterpret_cast<const char*>(text.data());
  JsonWalk walk(*this, letters);
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
    if (!walk.line(letters + offsets[i], letters + offsets[i + 1], starts + i * num_paths_, sizes + i * num_paths_)) {
      walk.finding.line = i;
      return walk.finding;
    }
  }
  return {};
}

}  // namespace penstock
