#include "core/example.h"

#include <cstring>
#include <random>

#include "check.h"
#include "core/error.h"

using namespace penstock;

namespace {

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

std::string varint(std::uint64_t value) {
  std::string made;
  for (; value >= 0x80; value >>= 7) made += static_cast<char>(value | 0x80);
  return made + static_cast<char>(value);
}

std::string field(std::uint64_t number, const std::string& content) {
  return varint(number << 3 | 2) + varint(content.size()) + content;
}

std::string feature(const std::string& name, std::uint64_t kind, const std::string& items) {
  return field(1, field(1, name) + field(2, field(kind, items)));
}

std::string floats(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

const std::string kMessage =
    field(1, feature("data", 1, field(1, "bytes")) + feature("x", 2, field(1, floats({1.5F, -2.0F}))) +
                 feature("n", 3, field(1, varint(7) + varint(~std::uint64_t{0}))) + feature("none", 3, ""));

ExampleParser parser() {
  return {{"n", "data", "x", "none", "missing"},
          {FeatureKind::ints, FeatureKind::bytes, FeatureKind::floats, FeatureKind::ints, FeatureKind::ints}};
}

void features_become_columns() {
  std::vector<std::int64_t> counts(5);
  parser().measure(bytes_of(kMessage), counts.data());
  check_equal(counts, std::vector<std::int64_t>{2, 5, 2, 0, -1}, "counts");
  std::int64_t n[2] = {};
  char data[5] = {};
  float x[2] = {};
  std::byte* const outs[5] = {reinterpret_cast<std::byte*>(n), reinterpret_cast<std::byte*>(data),
                              reinterpret_cast<std::byte*>(x), nullptr, nullptr};
  parser().read(bytes_of(kMessage), counts.data(), outs);
  check(n[0] == 7 && n[1] == -1, "whole numbers");
  check(std::string(data, 5) == "bytes", "bytes");
  check(x[0] == 1.5F && x[1] == -2.0F, "floats");
}

void features_are_listed() {
  const std::vector<NamedFeature> found = features_of(bytes_of(kMessage));
  check_equal(found.size(), std::size_t{4}, "features");
  check(found[1].name == "x" && found[1].feature.kind == FeatureKind::floats && count_values(found[1].feature) == 2, "floats");
  check(count_values(found[3].feature) == 0, "an empty list");
}

// Whatever comes, it is parsed within its bytes, or is an error.
void damage_is_an_error_or_other_values() {
  std::mt19937 random(1);
  const ExampleParser columns = parser();
  for (int round = 0; round < 20'000; ++round) {
    std::string message = kMessage;
    for (auto changes = random() % 3 + 1; changes-- > 0 && !message.empty();) {
      const std::size_t at = random() % message.size();
      switch (random() % 4) {
        case 0: message[at] = static_cast<char>(random()); break;
        case 1: message.resize(at); break;
        case 2: message.erase(at, random() % 4); break;
        default: message.insert(at, 1, static_cast<char>(random()));
      }
    }
    message.shrink_to_fit();
    try {
      std::vector<std::int64_t> counts(5);
      columns.measure(bytes_of(message), counts.data());
      const std::uint64_t items[5] = {8, 1, 4, 8, 8};
      std::vector<std::vector<std::byte>> room(5);
      std::byte* outs[5];
      for (std::size_t c = 0; c < 5; ++c) {
        room[c].resize(static_cast<std::size_t>(std::max<std::int64_t>(0, counts[c])) * items[c]);
        outs[c] = room[c].data();
      }
      columns.read(bytes_of(message), counts.data(), outs);
      for (const NamedFeature& one : features_of(bytes_of(message))) (void)count_values(one.feature);
    } catch (const CorruptError&) {}
  }
}

}  // namespace

int main() {
  features_become_columns();
  features_are_listed();
  damage_is_an_error_or_other_values();
  return finish();
}
