#include "core/json_lines.h"

#include <cstdint>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.h"

using namespace penstock;

namespace {

struct Found {
  JsonFinding finding;
  std::vector<std::string> values;  // of all lines and paths; "-" for missing ones
};

Found find(const JsonFinder& finder, const std::vector<std::string>& lines) {
  std::string text;
  std::vector<std::int64_t> offsets{0};
  for (const std::string& line : lines) {
    text += line;
    offsets.push_back(static_cast<std::int64_t>(text.size()));
  }
  std::vector<std::int64_t> starts(lines.size() * finder.num_paths()), sizes(starts.size());
  Found found{finder.find(std::as_bytes(std::span(text)), offsets, starts.data(), sizes.data()), {}};
  for (std::size_t i = 0; i < sizes.size() && found.finding.fault == JsonFault::none; ++i) {
    found.values.push_back(sizes[i] < 0 ? "-"
                                        : text.substr(static_cast<std::size_t>(starts[i]), static_cast<std::size_t>(sizes[i])));
  }
  return found;
}

int fault_of(const std::string& line, const std::vector<JsonPath>& paths = {}, bool strict = false) {
  return static_cast<int>(find(JsonFinder(paths, strict), {line}).finding.fault);
}

void json_is_told_from_everything_else() {
  const std::vector<std::string> good{
      "{}",
      " { } ",
      R"({"a":1})",
      R"({"a" : -0.5e+10 , "b":[ ] ,"c":[1,2 ,{"d":null}],"e":true,"f":false})",
      R"({"":"\"\\\/\b\f\n\r\t\u00e9\uD83D\uDE00é"})",
      R"({"a":NaN,"b":[Infinity,-Infinity]})",
      R"({"a":0,"b":10,"c":-0})",
      "{\"a\":\"\x7f\xC3\xA9\"}",
  };
  for (const std::string& line : good) check_equal(fault_of(line), 0, line);
  const std::vector<std::string> bad{
      "",
      "1",
      "[]",
      "null",
      "{",
      "}",
      "{}{}",
      "{} x",
      "{\"a\"}",
      "{\"a\":}",
      "{\"a\":1,}",
      "{,}",
      "{a:1}",
      "{\"a\":01}",
      "{\"a\":1.}",
      "{\"a\":.5}",
      "{\"a\":+1}",
      "{\"a\":1e}",
      "{\"a\":-",
      "{\"a\":tru}",
      "{\"a\":nul}",
      "{\"a\":[1,]}",
      "{\"a\":[1 2]}",
      "{\"a\":[",
      "{\"a\":\"",
      "{\"a\":\"\\x\"}",
      "{\"a\":\"\\u12g4\"}",
      "{\"a\":\"\\ud800\"}",
      "{\"a\":\"\\udc00\"}",
      "{\"a\":\"\\ud800\\u0041\"}",
      "{\"a\":\"\n\"}",
      "{\"a\":\"\x01\"}",
      "{\"a\":\"\xFF\"}",
      "{\"a\":\"\xED\xA0\x80\"}",
      "{'a':1}",
      "{\"a\":-NaN}",
      "{\"a\":1}}",
      "{\"a\":{\"b\":1}",
      std::string("{\"a\":\"\\") + '\0' + "\"}",
  };
  for (const std::string& line : bad) check_equal(fault_of(line), static_cast<int>(JsonFault::syntax), line);
}

void nesting_has_a_limit() {
  const auto nested = [](int depth) { return "{\"a\":" + std::string(depth, '[') + std::string(depth, ']') + "}"; };
  check_equal(fault_of(nested(JsonFinder::kMostDepth - 1)), 0, "as deep as may be");
  check_equal(fault_of(nested(JsonFinder::kMostDepth)), static_cast<int>(JsonFault::depth), "too deep");
  check_equal(fault_of("{\"a\":" + std::string(1 << 20, '[')), static_cast<int>(JsonFault::depth), "much too deep");
}

const std::vector<JsonPath> kPaths{
    {{"a"}, JsonKind::whole, true}, {{"b", "c"}, JsonKind::text, true}, {{"é"}, JsonKind::any, true}};

void values_are_found_in_any_order() {
  const JsonFinder finder(kPaths, false);
  const Found found = find(finder, {R"({"a":1,"b":{"c":"x"},"é":[1, {"a":2}]})",
                                    R"({"x":{"a":5},"\u00e9":null,"b":{"d":0,"c":"\""}})", R"({"b":null,"\u0061":-7})", "{}"});
  check(found.finding.fault == JsonFault::none, "no fault");
  check_equal(found.values.size(), std::size_t{12}, "values");
  const std::vector<std::string> expected{"1", "\"x\"", R"([1, {"a":2}])", "-", R"("\"")", "-", "-7", "-", "-", "-", "-", "-"};
  for (std::size_t i = 0; i < expected.size(); ++i) check_equal(found.values[i], expected[i], say("value ", i));
}

void faults_of_values_are_told() {
  const auto told = [](const std::string& line, JsonFault fault, std::int64_t path, std::int64_t place, bool strict = false) {
    const JsonFinding found = find(JsonFinder(kPaths, strict), {"{}", line}).finding;
    check_equal(static_cast<int>(found.fault), static_cast<int>(fault), line);
    check_equal(found.line, std::size_t{1}, "line");
    check_equal(found.path, path, line);
    check_equal(found.place - 2, place, line);
  };
  told(R"({"a":1.0})", JsonFault::kind, 0, 5);
  told(R"({"a":1e5})", JsonFault::kind, 0, 5);
  told(R"({"a":"1"})", JsonFault::kind, 0, 5);
  told(R"({"a":NaN})", JsonFault::kind, 0, 5);
  told(R"({"b":{"c":5}})", JsonFault::kind, 1, 10);
  told(R"({"b":[]})", JsonFault::not_object, 1, 5);
  told(R"({"b":"x"})", JsonFault::not_object, 1, 5);
  told(R"({"a":1,"a":1})", JsonFault::twice, 0, 11);
  told(R"({"b":null,"b":{}})", JsonFault::twice, -1, 14);
  told(R"({"a":null,"\u0061":1})", JsonFault::twice, 0, 19);
  told(R"({"z":1})", JsonFault::unknown, -1, 1, true);
  told(R"({"b":{"z":1}})", JsonFault::unknown, -1, 6, true);
  check_equal(fault_of(R"({"é":{"z":1}})", kPaths, true), 0, "what is in a value of any kind is not known");
  check_equal(fault_of("{}", {{{"a"}, JsonKind::any, false}}), static_cast<int>(JsonFault::missing), "missing");
  check_equal(fault_of(R"({"a":null})", {{{"a"}, JsonKind::any, false}}), static_cast<int>(JsonFault::missing), "null");
  check_equal(fault_of(R"({"a":1})", {{{"a"}, JsonKind::nothing, true}}), static_cast<int>(JsonFault::kind), "never there");
  check_equal(fault_of(R"({"a":null})", {{{"a"}, JsonKind::nothing, true}}), 0, "never there");
  for (const auto& [value, kind] : std::vector<std::pair<std::string, JsonKind>>{{"-5", JsonKind::whole},
                                                                                 {"1.5", JsonKind::number},
                                                                                 {"-Infinity", JsonKind::number},
                                                                                 {"true", JsonKind::boolean},
                                                                                 {"\"\"", JsonKind::text},
                                                                                 {"[]", JsonKind::list},
                                                                                 {"{}", JsonKind::any}}) {
    check_equal(fault_of("{\"a\":" + value + "}", {{{"a"}, kind, false}}), 0, value);
  }
}

void hostile_lines_do_no_harm() {
  const std::string letters = "{}[]\",:\\u0d8c9abtfnrNI-+.eE1 \t\n\x01\xC3\xA9\xFF";
  const JsonFinder finder(kPaths, true);
  std::mt19937 random(3);
  for (int turn = 0; turn < 20000; ++turn) {
    std::string line = turn % 2 == 0 ? "{\"a\":" : "{\"b\":{\"c\":\"";
    const std::size_t size = random() % 30;
    for (std::size_t i = 0; i < size; ++i) line += letters[random() % letters.size()];
    const std::vector<char> exact(line.begin(), line.end());  // with nothing behind it that could be read
    const std::vector<std::int64_t> offsets{0, static_cast<std::int64_t>(exact.size())};
    std::vector<std::int64_t> starts(3), sizes(3);
    const JsonFinding found = finder.find(std::as_bytes(std::span(exact)), offsets, starts.data(), sizes.data());
    check(found.place >= 0 && found.place <= offsets[1], say("a place within ", line));
  }
}

void paths_do_not_overlap() {
  const auto make = [](std::vector<std::vector<std::string>> keys) {
    std::vector<JsonPath> paths;
    for (auto& some : keys) paths.push_back({some, JsonKind::any, true});
    JsonFinder(paths, false);
  };
  make({{"a", "b"}, {"a", "c"}, {"b"}});
  check_throws<std::invalid_argument>([&] { make({{"a"}, {"a"}}); });
  check_throws<std::invalid_argument>([&] { make({{"a"}, {"a", "b"}}); });
  check_throws<std::invalid_argument>([&] { make({{"a", "b"}, {"a"}}); });
  check_throws<std::invalid_argument>([&] { make({{}}); });
}

}  // namespace

int main() {
  json_is_told_from_everything_else();
  nesting_has_a_limit();
  values_are_found_in_any_order();
  faults_of_values_are_told();
  hostile_lines_do_no_harm();
  paths_do_not_overlap();
  return finish();
}
