#include "core/mixture.h"

#include <algorithm>
#include <optional>
#include <stdexcept>

#include "core/seed.h"

namespace penstock {
namespace {

std::uint64_t share(std::uint64_t positions, std::uint64_t cumulative_weight) {
  return static_cast<std::uint64_t>((static_cast<unsigned __int128>(positions) * cumulative_weight) >> 63);
}

struct Period {
  const MixtureSegment* segment;
  std::uint64_t first;  // absolute position
  std::uint64_t end;    // behind the last position; before that of a whole period where it is cut off
  Permutation slots;
  std::vector<std::uint64_t> edges;
  std::vector<std::int64_t> before;  // elements given before this period
  std::vector<std::uint16_t> owner;  // the data set of each slot, where a table of them is small; spares a search per position

  Period(const MixtureSegment& s, std::uint64_t number, std::uint64_t root, std::uint64_t segment_end)
      : segment(&s),
        first(s.start + number * s.period),
        end(std::min(first + s.period, segment_end)),
        slots(s.period, absorb(root, first)),
        edges(s.edges),
        before(s.before) {
    if (!s.counted) set_shares(number);
    if (edges.front() != 0 || edges.back() != s.period || !std::is_sorted(edges.begin(), edges.end())) {
      throw std::invalid_argument("the shares of a mixture do not fill its periods");
    }
    if (s.period > kTableLimit || before.size() > kTableLimit) return;
    owner.resize(s.period);
    for (std::size_t k = 0; k < before.size(); ++k) {
      std::fill(owner.begin() + static_cast<std::ptrdiff_t>(edges[k]), owner.begin() + static_cast<std::ptrdiff_t>(edges[k + 1]),
                static_cast<std::uint16_t>(k));
    }
  }

  void set_shares(std::uint64_t number) {
    const MixtureSegment& s = *segment;
    const std::uint64_t from = number * s.period;
    std::uint64_t given = share(from, s.edges[0]);
    for (std::size_t k = 0; k < edges.size(); ++k) {
      const std::uint64_t start = share(from, s.edges[k]);
      edges[k] = share(from + s.period, s.edges[k]) - start;
      if (k > 0) before[k - 1] += static_cast<std::int64_t>((start - given) * s.unit);
      given = start;
    }
  }

  bool holds(std::uint64_t position) const { return position >= first && position < end; }

  std::size_t owner_of(std::uint64_t slot) const {
    if (!owner.empty()) return owner[slot];
    return static_cast<std::size_t>(std::upper_bound(edges.begin(), edges.end(), slot) - edges.begin()) - 1;
  }
};

const MixtureSegment& segment_of(const std::vector<MixtureSegment>& segments, std::uint64_t position) {
  const auto after = std::upper_bound(segments.begin(), segments.end(), position,
                                      [](std::uint64_t p, const MixtureSegment& s) { return p < s.start; });
  return *std::prev(after);
}

// The period of a position, with before[k] added to what data set k has given.
Period period_of(const std::vector<MixtureSegment>& segments, std::uint64_t root, std::uint64_t position,
                 std::span<const std::int64_t> before) {
  const MixtureSegment& segment = segment_of(segments, position);
  const bool is_last = &segment == &segments.back();
  const std::uint64_t end = is_last ? kMaxLength + 1 : segments[static_cast<std::size_t>(&segment - segments.data()) + 1].start;
  Period period(segment, (position - segment.start) / segment.period, root, end);
  if (!before.empty() && before.size() != period.before.size())
    throw std::invalid_argument("expected a number for every data set");
  for (std::size_t k = 0; k < before.size(); ++k) period.before[k] += before[k];
  return period;
}

}  // namespace

std::int64_t Deferred::element_of(std::int64_t number) const {
  if (!has(number)) return number;
  const auto run = std::upper_bound(numbers.begin(), numbers.end(), number) - numbers.begin() - 1;
  return elements[static_cast<std::size_t>(run)] + number - numbers[static_cast<std::size_t>(run)];
}

MixtureLine::MixtureLine(std::vector<MixtureSegment> segments, std::vector<std::vector<Deferred>> deferred)
    : segments_(std::move(segments)), deferred_(std::move(deferred)) {
  for (const MixtureSegment& segment : segments_) {
    if (segment.level > deferred_.size()) throw std::invalid_argument("expected what is deferred in every level of a mixture");
    if (segment.level > 0 && deferred_[segment.level - 1].size() != segment.before.size())
      throw std::invalid_argument("expected what is deferred of every data set");
  }
  for (const std::vector<Deferred>& level : deferred_) {
    for (const Deferred& one : level) {
      const bool fits = one.numbers.empty() ? one.elements.empty() : one.numbers.size() == one.elements.size() + 1;
      if (!fits || !std::is_sorted(one.numbers.begin(), one.numbers.end()))
        throw std::invalid_argument("expected rising numbers of deferred elements, and one more behind them");
    }
  }
}

const Deferred* MixtureLine::deferred_of(const MixtureSegment& segment) const {
  return segment.level == 0 ? nullptr : deferred_[segment.level - 1].data();
}

void MixtureLine::at(std::uint64_t root, std::span<const std::int64_t> positions, std::span<std::int32_t> which,
                     std::span<std::int64_t> element, std::span<const std::int64_t> before) const {
  std::optional<Period> kept[2];  // positions that a mixture around this one has shuffled jump to and fro between two periods
  std::size_t current = 0;
  for (std::size_t i = 0; i < positions.size(); ++i) {
    const auto position = static_cast<std::uint64_t>(positions[i]);
    if (!kept[current] || !kept[current]->holds(position)) {
      current ^= 1;
      if (!kept[current] || !kept[current]->holds(position)) {
        kept[current].emplace(period_of(segments_, root, position, before));
      }
    }
    const std::optional<Period>& period = kept[current];
    const std::uint64_t slot = period->slots.forward(position - period->first);
    const std::size_t k = period->owner_of(slot);
    which[i] = static_cast<std::int32_t>(k);
    const std::int64_t number = period->before[k] + static_cast<std::int64_t>((slot - period->edges[k]) * period->segment->unit);
    const Deferred* const deferred = deferred_of(*period->segment);
    element[i] = deferred == nullptr ? number : deferred[k].element_of(number);
  }
}

bool MixtureLine::run(std::uint64_t root, std::int64_t first, std::span<std::uint32_t> places, std::span<std::int64_t> elements,
                      std::span<std::int64_t> counts, std::span<const std::int64_t> before) const {
  const auto begin = static_cast<std::uint64_t>(first);
  const std::uint64_t end = begin + places.size();
  std::vector<Period> periods;
  for (std::uint64_t position = begin; position < end; position = periods.back().first + periods.back().segment->period) {
    const MixtureSegment& segment = segment_of(segments_, position);
    if (segment.period > places.size() || segment.unit != 1) return false;
    const Period& period = periods.emplace_back(period_of(segments_, root, position, before));
    if (counts.size() != period.before.size() || elements.size() != counts.size())
      throw std::invalid_argument("expected a place for every data set");
    if (&segment_of(segments_, period.first + segment.period - 1) != &segment) return false;  // it is cut off
    for (std::size_t k = 0; k < counts.size(); ++k) {
      if (periods.size() == 1) {
        elements[k] = period.before[k];
        counts[k] = 0;
      }
      if (period.before[k] != elements[k] + counts[k]) return false;
      if (const Deferred* const deferred = deferred_of(segment); deferred != nullptr && deferred[k].has(period.before[k]))
        return false;
      counts[k] += static_cast<std::int64_t>(period.edges[k + 1] - period.edges[k]);
    }
  }
  std::vector<std::uint32_t> shifts(counts.size());  // from the slot of an element to its number
  for (const Period& period : periods) {
    std::int64_t number = 0;
    for (std::size_t k = 0; k < counts.size(); ++k) {
      const auto slot = static_cast<std::int64_t>(period.edges[k]);
      shifts[k] = static_cast<std::uint32_t>(number + period.before[k] - elements[k] - slot);
      number += counts[k];
    }
    const std::uint64_t low = std::max(begin, period.first);
    const std::uint64_t high = std::min(end, period.first + period.segment->period);
    for (std::uint64_t position = low; position < high; ++position) {
      const std::uint64_t slot = period.slots.forward(position - period.first);
      places[position - begin] = static_cast<std::uint32_t>(slot) + shifts[period.owner_of(slot)];
    }
  }
  return true;
}

std::vector<std::int64_t> MixtureLine::given_before(std::uint64_t position) const {
  const MixtureSegment& segment = segment_of(segments_, position);
  if (segment.counted) return segment.before;
  std::vector<std::int64_t> given = segment.before;
  const std::uint64_t from = (position - segment.start) / segment.period * segment.period;
  for (std::size_t k = 0; k < given.size(); ++k) {
    given[k] += static_cast<std::int64_t>((share(from, segment.edges[k + 1]) - share(from, segment.edges[k])) * segment.unit);
  }
  return given;
}

}  // namespace penstock
