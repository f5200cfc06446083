#include "core/row_lookup.h"

#include <algorithm>
#include <stdexcept>

namespace penstock {
namespace {

// How many of the rising `ends` are at most id. Without branches: which run a shuffled id is in cannot be predicted.
std::size_t run_of(const std::int64_t* ends, std::size_t count, std::int64_t id) {
  const std::int64_t* base = ends;
  while (count > 1) {
    const std::size_t half = count / 2;
    base += half * static_cast<std::size_t>(base[half - 1] <= id);
    count -= half;
  }
  return static_cast<std::size_t>(base - ends) + (count == 1 && *base <= id ? 1 : 0);
}

}  // namespace

RowLookup::RowLookup(const std::vector<std::vector<RowRun>>& streams) : first_{0} {
  for (const std::vector<RowRun>& runs : streams) {
    std::int64_t before = 0;
    for (const RowRun& run : runs) {
      if (run.end <= before) throw std::invalid_argument("expected runs of records in rising order, none empty");
      before = run.end;
      ends_.push_back(run.end);
      runs_.push_back(run);
    }
    first_.push_back(runs_.size());
  }
}

void RowLookup::find(std::span<const std::int64_t> ids, std::span<const std::int32_t> streams, std::int32_t* which,
                     std::int64_t* rows) const {
  const std::size_t num_streams = first_.size() - 1;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto stream = streams.empty() ? std::size_t{0} : static_cast<std::size_t>(streams[i]);
    if (stream >= num_streams) throw std::out_of_range("a record is of a stream that does not exist");
    const std::size_t first = first_[stream];
    const std::size_t count = first_[stream + 1] - first;
    const std::size_t at = run_of(ends_.data() + first, count, ids[i]);
    if (at == count || ids[i] < 0) throw std::out_of_range("a record that does not exist");
    const RowRun& run = runs_[first + at];
    which[i] = run.leaf;
    rows[i] = run.base + ids[i] * run.step;
  }
}

void group_by(std::span<const std::int32_t> which, std::span<std::int64_t> order, std::span<std::int64_t> ends) {
  std::fill(ends.begin(), ends.end(), 0);
  for (const std::int32_t group : which) {
    if (static_cast<std::size_t>(group) >= ends.size()) throw std::out_of_range("a group that does not exist");
    ++ends[static_cast<std::size_t>(group)];
  }
  std::int64_t total = 0;
  for (std::int64_t& end : ends) {  // where each group begins; filling it makes that its end
    const std::int64_t size = end;
    end = total;
    total += size;
  }
  for (std::size_t i = 0; i < which.size(); ++i) {
    std::int64_t& next = ends[static_cast<std::size_t>(which[i])];
    order[static_cast<std::size_t>(next++)] = static_cast<std::int64_t>(i);
  }
}

}  // namespace penstock
