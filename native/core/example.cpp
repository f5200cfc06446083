#include "core/example.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "core/error.h"

namespace penstock {
namespace {

constexpr std::size_t kMostFeatures = 4096;  // of a message whose features are not known

enum Wire : std::uint8_t { kVarint = 0, kEight = 1, kBytes = 2, kFour = 5 };

[[noreturn]] void fail(const char* words) { throw CorruptError(std::string("expected a tf.Example, found ") + words); }

// Fields of a message, one after the other.
class Fields {
 public:
  explicit Fields(std::span<const std::byte> message) : at_(message.data()), end_(message.data() + message.size()) {}

  // Moves to the next field; false at the end.
  bool next() {
    if (at_ == end_) return false;
    const std::uint64_t tag = varint();
    if (tag >> 3 == 0 || tag >> 32 != 0) fail("a field without a number");
    number = static_cast<std::uint32_t>(tag >> 3);
    wire = static_cast<std::uint8_t>(tag & 7);
    switch (wire) {
      case kVarint: value = varint(); break;
      case kEight: content = take(8); break;
      case kFour: content = take(4); break;
      case kBytes: content = take(varint()); break;
      default: fail("a field of an unknown type");
    }
    return true;
  }
  // The content of a field that must be a message or bytes.
  std::span<const std::byte> bytes() const {
    if (wire != kBytes) fail("a number where a message is expected");
    return content;
  }

  std::uint32_t number = 0;
  std::uint8_t wire = 0;
  std::uint64_t value = 0;
  std::span<const std::byte> content;

 private:
  std::uint64_t varint() {
    std::uint64_t made = 0;
    for (int shift = 0; shift < 70; shift += 7) {
      if (at_ == end_) fail("a message that is cut");
      const auto byte = std::to_integer<std::uint64_t>(*at_++);
      if (shift == 63 && byte > 1) fail("a number of more than 64 bits");
      made |= (byte & 0x7f) << shift;
      if (byte < 0x80) return made;
    }
    fail("a number of more than 64 bits");
  }
  std::span<const std::byte> take(std::uint64_t count) {
    if (count > static_cast<std::uint64_t>(end_ - at_)) fail("a message that is cut");
    const std::span<const std::byte> taken{at_, count};
    at_ += count;
    return taken;
  }

  const std::byte* at_;
  const std::byte* end_;
};

Feature feature_of(std::span<const std::byte> message) {
  Feature found;
  for (Fields fields(message); fields.next();) {
    if (fields.number > 3) continue;
    if (found.kind != FeatureKind::none) fail("a feature with two lists");
    found = {static_cast<FeatureKind>(fields.number), fields.bytes()};
  }
  return found;
}

// Calls each(name, feature) for every feature, in the order of the message.
template <class Each>
void for_each_feature(std::span<const std::byte> message, const Each& each) {
  for (Fields example(message); example.next();) {
    if (example.number != 1) continue;
    for (Fields features(example.bytes()); features.next();) {
      if (features.number != 1) continue;
      std::span<const std::byte> name;
      std::span<const std::byte> value;
      bool has_value = false;
      for (Fields entry(features.bytes()); entry.next();) {
        if (entry.number == 1) name = entry.bytes();
        if (entry.number != 2) continue;
        if (has_value) fail("a feature with two values");
        value = entry.bytes();
        has_value = true;
      }
      each(std::string_view{reinterpret_cast<const char*>(name.data()), name.size()}, feature_of(value));
    }
  }
}

// Calls each(field) for every element, or packed run of them, of a list.
template <class Each>
void for_each_item(const Feature& feature, const Each& each) {
  for (Fields list(feature.list); list.next();) {
    if (list.number == 1) each(list);
  }
}

// Whole numbers that follow one another; gives how many, and writes them where there is a place for them.
std::uint64_t unpack(std::span<const std::byte> packed, std::byte* to) {
  std::uint64_t count = 0;
  for (std::size_t at = 0; at < packed.size(); ++count) {
    std::uint64_t made = 0;
    int shift = 0;
    while (true) {
      if (at == packed.size() || shift > 63) fail("a list of whole numbers that is cut");
      const auto byte = std::to_integer<std::uint64_t>(packed[at++]);
      if (shift == 63 && byte > 1) fail("a number of more than 64 bits");
      made |= (byte & 0x7f) << shift;
      if (byte < 0x80) break;
      shift += 7;
    }
    if (to != nullptr) std::memcpy(to + count * sizeof made, &made, sizeof made);
  }
  return count;
}

// The values of a list of numbers: how many, and themselves where there is a place for them.
std::uint64_t read_numbers(const Feature& feature, std::byte* to) {
  const std::size_t item = feature.kind == FeatureKind::floats ? 4 : 8;
  std::uint64_t count = 0;
  for_each_item(feature, [&](const Fields& field) {
    std::byte* const at = to == nullptr ? nullptr : to + count * item;
    if (field.wire == kBytes && feature.kind == FeatureKind::ints) {
      count += unpack(field.content, at);
    } else if (field.wire == kBytes || (field.wire == kFour && feature.kind == FeatureKind::floats)) {
      if (feature.kind != FeatureKind::floats || field.content.size() % item != 0) fail("a list of floats that is cut");
      if (at != nullptr && !field.content.empty()) std::memcpy(at, field.content.data(), field.content.size());
      count += field.content.size() / item;
    } else if (field.wire == kVarint && feature.kind == FeatureKind::ints) {
      if (at != nullptr) std::memcpy(at, &field.value, sizeof field.value);
      ++count;
    } else {
      fail("a list of another type than it says");
    }
  });
  return count;
}

const char* name_of(FeatureKind kind) {
  switch (kind) {
    case FeatureKind::bytes: return "byte strings";
    case FeatureKind::floats: return "floats";
    case FeatureKind::ints: return "whole numbers";
    default: return "nothing";
  }
}

}  // namespace

std::vector<NamedFeature> features_of(std::span<const std::byte> message) {
  std::vector<NamedFeature> found;
  for_each_feature(message, [&](std::string_view name, const Feature& feature) {
    const auto same = std::find_if(found.begin(), found.end(), [&](const NamedFeature& one) { return one.name == name; });
    if (same != found.end()) {
      same->feature = feature;
    } else {
      if (found.size() == kMostFeatures) fail("more than 4,096 features");
      found.push_back({name, feature});
    }
  });
  return found;
}

std::uint64_t count_values(const Feature& feature) {
  if (feature.kind == FeatureKind::none) return 0;
  if (feature.kind != FeatureKind::bytes) return read_numbers(feature, nullptr);
  std::uint64_t count = 0;
  for_each_item(feature, [&](const Fields& field) {
    (void)field.bytes();
    ++count;
  });
  return count;
}

ExampleParser::ExampleParser(std::vector<std::string> names, std::vector<FeatureKind> kinds)
    : names_(std::move(names)), kinds_(std::move(kinds)) {
  if (names_.size() != kinds_.size()) throw std::invalid_argument("expected a kind for every name");
  for (const FeatureKind kind : kinds_) {
    if (kind < FeatureKind::bytes || kind > FeatureKind::ints) throw std::invalid_argument("expected a kind of list");
  }
}

void ExampleParser::find(std::span<const std::byte> message, Feature* out) const {
  std::fill_n(out, names_.size(), Feature{});
  std::size_t guess = 0;  // features of all messages mostly come in one order
  for_each_feature(message, [&](std::string_view name, const Feature& feature) {
    for (std::size_t tried = 0; tried < names_.size(); ++tried) {
      const std::size_t column = (guess + tried) % names_.size();
      if (names_[column] != name) continue;
      out[column] = feature;
      guess = column + 1;
      return;
    }
  });
}

void ExampleParser::measure(std::span<const std::byte> message, std::int64_t* counts) const {
  std::vector<Feature> found(names_.size());
  find(message, found.data());
  for (std::size_t c = 0; c < found.size(); ++c) {
    if (found[c].kind == FeatureKind::none) {
      counts[c] = -1;
      continue;
    }
    if (found[c].kind != kinds_[c]) {
      throw CorruptError("feature " + shown(names_[c]) + ": expected " + name_of(kinds_[c]) + ", found " +
                         name_of(found[c].kind));
    }
    counts[c] = static_cast<std::int64_t>(count_values(found[c]));
    if (kinds_[c] != FeatureKind::bytes) continue;
    if (counts[c] != 1) {
      throw CorruptError("feature " + shown(names_[c]) + ": expected one byte string, found " + std::to_string(counts[c]));
    }
    for_each_item(found[c], [&](const Fields& field) { counts[c] = static_cast<std::int64_t>(field.content.size()); });
  }
}

void ExampleParser::read(std::span<const std::byte> message, const std::int64_t* counts, std::byte* const* outs) const {
  std::vector<Feature> found(names_.size());
  find(message, found.data());
  for (std::size_t c = 0; c < found.size(); ++c) {
    if (outs[c] == nullptr || counts[c] <= 0) continue;
    if (found[c].kind != kinds_[c]) throw std::logic_error("a message has other features than were measured");
    if (kinds_[c] != FeatureKind::bytes) {
      if (count_values(found[c]) != static_cast<std::uint64_t>(counts[c])) {
        throw std::logic_error("a list has another length than was measured");
      }
      read_numbers(found[c], outs[c]);
      continue;
    }
    for_each_item(found[c], [&](const Fields& field) {
      if (field.content.size() != static_cast<std::uint64_t>(counts[c])) {
        throw std::logic_error("a byte string has another length than was measured");
      }
      std::memcpy(outs[c], field.content.data(), field.content.size());
    });
  }
}

}  // namespace penstock
