#include "core/run_reader.h"

#include <numeric>

#include "check.h"

using namespace penstock;

namespace {

constexpr std::uint64_t kRows = 100;
constexpr std::uint64_t kStride = 3;

// Byte i of the rows is i.
struct Rows {
  Rows() : bytes(kRows * kStride) {
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i);
    // Two parts, so that runs cross from one to the other.
    reader = std::make_unique<RowReader>(
        std::vector<RowPart>{{"", 0, 0, 40, bytes.data()}, {"", 0, 0, 60, bytes.data() + 40 * kStride}}, kStride,
        FileAccess::map);
  }
  std::vector<std::byte> bytes;
  std::unique_ptr<RowReader> reader;
};

const std::vector<std::int64_t> kBounds{5, 5, 38, 43, 43, 99, 100};

void records_are_runs_of_rows() {
  const Rows rows;
  const RisingBounds bounds(kBounds, kRows);
  const RunReader reader(*rows.reader, bounds, {12345});
  check_equal(reader.batch_bytes(), std::uint64_t{12345}, "the limit of a batch");
  const std::vector<std::int64_t> ids{5, 2, 0, 4, 1, 2, 3};
  std::vector<std::int64_t> sizes(ids.size()), starts(ids.size());
  reader.sizes(ids, 0, sizes.data(), nullptr);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto id = static_cast<std::size_t>(ids[i]);
    check_equal(sizes[i], (kBounds[id + 1] - kBounds[id]) * std::int64_t{kStride}, "size");
  }
  std::exclusive_scan(sizes.begin(), sizes.end(), starts.begin(), std::int64_t{0});
  std::vector<std::byte> out(static_cast<std::size_t>(starts.back() + sizes.back()));
  reader.read(ids, starts.data(), sizes.data(), out.data());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto from = static_cast<std::size_t>(kBounds[static_cast<std::size_t>(ids[i])]) * kStride;
    for (std::size_t k = 0; k < static_cast<std::size_t>(sizes[i]); ++k) {
      check(out[static_cast<std::size_t>(starts[i]) + k] == rows.bytes[from + k], say("byte ", k, " of record ", ids[i]));
    }
  }
}

void parts_of_records_are_read() {
  const Rows rows;
  const RisingBounds bounds(kBounds, kRows);
  const RunReader reader(*rows.reader, bounds, {1 << 20});
  std::vector<std::byte> out(9);
  const std::vector<RecordPart> parts{{2, 15, 3, 6, 0}, {4, 168, 165, 3, 6}};
  reader.read_parts(parts, out.data());
  for (std::size_t i = 0; i < 6; ++i) check(out[i] == rows.bytes[39 * kStride + i], "a part that crosses");
  for (std::size_t i = 0; i < 3; ++i) check(out[6 + i] == rows.bytes[98 * kStride + i], "the last row of a record");
}

void what_cannot_be_is_refused() {
  const Rows rows;
  for (const std::vector<std::int64_t>& bounds : std::vector<std::vector<std::int64_t>>{{}, {-1, 3}, {0, 101}, {0, 5, 4}}) {
    check_throws<std::invalid_argument>([&] { RisingBounds(bounds, kRows); });
  }
  const RisingBounds bounds(kBounds, kRows);
  const RunReader reader(*rows.reader, bounds, {1});
  std::vector<std::byte> out(99);
  const std::vector<RecordPart> other{{2, 12, 0, 12, 0}};
  check_throws<std::logic_error>([&] { reader.read_parts(other, out.data()); });
}

}  // namespace

int main() {
  records_are_runs_of_rows();
  parts_of_records_are_read();
  what_cannot_be_is_refused();
  return finish();
}
