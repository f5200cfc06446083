// tf.Example: messages of protocol buffers with named lists of byte strings, floats or whole numbers, read into columns.
//
//   Example  = 1: Features          Features = 1: {1: name, 2: Feature} for each
//   Feature  = 1: BytesList | 2: FloatList | 3: Int64List, each with field 1 repeated, numbers packed or not
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

enum class FeatureKind : std::uint8_t { none = 0, bytes = 1, floats = 2, ints = 3 };

// A feature of a message: the content of its list, which is in the message.
struct Feature {
  FeatureKind kind = FeatureKind::none;  // none: the message does not say
  std::span<const std::byte> list;
};

struct NamedFeature {
  std::string_view name;
  Feature feature;
};

// All features of a message; of several of one name the last. Throws CorruptError if it is no such message.
std::vector<NamedFeature> features_of(std::span<const std::byte> message);

// Values of a list. Throws CorruptError if it is damaged.
std::uint64_t count_values(const Feature& feature);

// Columns of features, each of one kind.
class ExampleParser {
 public:
  ExampleParser(std::vector<std::string> names, std::vector<FeatureKind> kinds);

  std::size_t columns() const { return names_.size(); }
  // counts[c]: values of column c, bytes of the one value for a column of bytes; -1 if the message does not have it. Throws
  // CorruptError for a damaged message, another kind of list, or not one value in a column of bytes.
  void measure(std::span<const std::byte> message, std::int64_t* counts) const;
  // The values of column c to outs[c] (null: not wanted), as many as were measured.
  void read(std::span<const std::byte> message, const std::int64_t* counts, std::byte* const* outs) const;

 private:
  void find(std::span<const std::byte> message, Feature* out) const;

  std::vector<std::string> names_;
  std::vector<FeatureKind> kinds_;
};

}  // namespace penstock
