#include "core/row_lookup.h"

#include <numeric>

#include "check.h"

using namespace penstock;

namespace {

// Stream 0: 3 records of leaf 0, then 5 of leaf 1 backwards; stream 1: none; stream 2: 1, 2, 3, ... 40 records, a leaf each.
std::vector<std::vector<RowRun>> some_streams() {
  std::vector<std::vector<RowRun>> streams{{{3, 10, 2, 0}, {8, 100, -1, 1}}, {}, {}};
  std::int64_t end = 0;
  for (std::int32_t leaf = 0; leaf < 40; ++leaf) {
    end += leaf + 1;
    streams[2].push_back({end, 1000 * leaf, 1, leaf + 2});
  }
  return streams;
}

void every_record_is_found_in_its_run() {
  const auto streams = some_streams();
  const RowLookup lookup(streams);
  std::vector<std::int64_t> ids;
  std::vector<std::int32_t> of;
  std::vector<std::int32_t> which;
  std::vector<std::int64_t> rows;
  for (std::size_t s = 0; s < streams.size(); ++s) {
    std::int64_t id = 0;
    for (const RowRun& run : streams[s]) {
      for (; id < run.end; ++id) {
        ids.insert(ids.begin(), id);
        of.insert(of.begin(), static_cast<std::int32_t>(s));
        which.insert(which.begin(), run.leaf);
        rows.insert(rows.begin(), run.base + id * run.step);
      }
    }
  }
  std::vector<std::int32_t> found_which(ids.size());
  std::vector<std::int64_t> found_rows(ids.size());
  lookup.find(ids, of, found_which.data(), found_rows.data());
  check_equal(found_which, which, "leaves");
  check_equal(found_rows, rows, "rows");
}

void records_and_streams_that_do_not_exist_are_errors() {
  const RowLookup lookup(some_streams());
  const std::vector<std::pair<std::int64_t, std::int32_t>> bad{{8, 0}, {-1, 0}, {0, 1}, {820, 2}, {0, 3}, {0, -1}};
  for (const auto& [id, stream] : bad) {
    std::int32_t which = 0;
    std::int64_t row = 0;
    check_throws<std::out_of_range>([&] { lookup.find({&id, 1}, {&stream, 1}, &which, &row); });
  }
  check_throws<std::invalid_argument>([] { RowLookup({{{5, 0, 1, 0}, {5, 0, 1, 1}}}); });
}

void groups_keep_the_order_within() {
  const std::vector<std::int32_t> which{2, 0, 2, 4, 0, 2};
  std::vector<std::int64_t> order(which.size());
  std::vector<std::int64_t> ends(5);
  group_by(which, order, ends);
  check_equal(order, std::vector<std::int64_t>{1, 4, 0, 2, 5, 3}, "order");
  check_equal(ends, std::vector<std::int64_t>{2, 2, 5, 5, 6}, "ends");
  std::vector<std::int64_t> few(4);
  check_throws<std::out_of_range>([&] { group_by(which, order, few); });
  const std::int32_t negative = -1;
  check_throws<std::out_of_range>([&] { group_by({&negative, 1}, {order.data(), 1}, ends); });
}

}  // namespace

int main() {
  every_record_is_found_in_its_run();
  records_and_streams_that_do_not_exist_are_errors();
  groups_keep_the_order_within();
  return finish();
}
