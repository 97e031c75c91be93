#include "shardwise/loader/order/mix_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <queue>
#include <utility>

#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

[[noreturn]] void refuse_mix(const std::string& found) {
  throw Error(ErrorCode::invalid_argument, "mix: " + found);
}

std::int64_t period_of(std::span<const std::int64_t> weights) {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] < 0 || weights[i] > MixOrder::kMaxPeriod) {
      refuse_mix(
          fmt::format("weight {} is {}, needed is 0 to {}", i, weights[i], MixOrder::kMaxPeriod));
    }
    sum += weights[i];
  }
  if (sum == 0 || sum > MixOrder::kMaxPeriod) {
    refuse_mix(fmt::format("the weights sum to {}, needed is 1 to {}", sum, MixOrder::kMaxPeriod));
  }
  return sum;
}

// The next draw of a source within the period: not before slot `release`, and ordered by its
// deadline, numerator / weight.
struct Waiting {
  std::int64_t release, numerator, weight;
  std::uint32_t source, count;
};

bool released_later(const Waiting& a, const Waiting& b) { return a.release > b.release; }

bool due_later(const Waiting& a, const Waiting& b) {
  const std::int64_t left = a.numerator * b.weight, right = b.numerator * a.weight;
  return left != right ? left > right : a.source > b.source;
}

// Tijdeman's rule, with spread = 2k - 2: in slot t = 1, 2, .. a source with x draws so far may be
// drawn if weight * t / period - x >= 1 / spread. Of these sources, the one with the least
// (x + 1 - 1 / spread) * period / weight is drawn.
Waiting waiting(std::uint32_t source, std::uint32_t count, std::int64_t weight, std::int64_t period,
                std::int64_t spread) {
  const std::int64_t least = period * (1 + spread * count), per_slot = spread * weight;
  return {(least + per_slot - 1) / per_slot, spread * (count + std::int64_t{1}) - 1, weight, source,
          count};
}

}  // namespace

MixOrder::MixOrder(std::vector<std::int64_t> weights, std::vector<MixChange> changes) {
  if (weights.empty() || weights.size() > static_cast<std::size_t>(kMaxSources)) {
    refuse_mix(fmt::format("got {} weights, needed is 1 to {}", weights.size(), kMaxSources));
  }
  stretches_.reserve(changes.size() + 1);
  stretches_.push_back(make_stretch(0, std::move(weights)));
  for (MixChange& change : changes) {
    const Stretch& before = stretches_.back();
    if (change.weights.size() != before.weights.size()) {
      refuse_mix(fmt::format("the change at sample {} has {} weights, needed is {}",
                             change.first_sample, change.weights.size(), before.weights.size()));
    }
    if (change.first_sample <= before.begin) {
      refuse_mix(fmt::format("a change begins at sample {}, needed is one after {}",
                             change.first_sample, before.begin));
    }
    Stretch next = make_stretch(change.first_sample, std::move(change.weights));
    for (std::size_t source = 0; source < next.drawn.size(); ++source) {
      next.drawn[source] = drawn_in(before, next.begin, source);
    }
    stretches_.push_back(std::move(next));
  }
}

MixOrder::Stretch MixOrder::make_stretch(std::int64_t begin, std::vector<std::int64_t> weights) {
  const std::int64_t period = period_of(weights);
  Stretch stretch{begin,
                  std::move(weights),
                  std::vector<std::int64_t>(),
                  period,
                  std::vector<Slot>(static_cast<std::size_t>(period)),
                  {}};
  const std::size_t sources = stretch.weights.size();
  stretch.drawn.resize(sources);
  stretch.places.resize(sources);
  const std::int64_t drawn_sources =
      std::ranges::count_if(stretch.weights, [](std::int64_t weight) { return weight > 0; });
  const std::int64_t spread = std::max<std::int64_t>(2 * drawn_sources - 2, 1);

  std::priority_queue<Waiting, std::vector<Waiting>, decltype(&released_later)> later(
      released_later);
  std::priority_queue<Waiting, std::vector<Waiting>, decltype(&due_later)> ready(due_later);
  for (std::size_t source = 0; source < sources; ++source) {
    const std::int64_t weight = stretch.weights[source];
    stretch.places[source].reserve(static_cast<std::size_t>(weight));
    if (weight > 0) {
      later.push(waiting(static_cast<std::uint32_t>(source), 0, weight, period, spread));
    }
  }
  for (std::int64_t slot = 0; slot < period; ++slot) {
    while (!later.empty() && later.top().release <= slot + 1) {
      ready.push(later.top());
      later.pop();
    }
    assert(!ready.empty());  // the theorem
    const Waiting next = ready.top();
    ready.pop();
    stretch.slots[static_cast<std::size_t>(slot)] = {next.source, next.count};
    stretch.places[next.source].push_back(static_cast<std::uint32_t>(slot));
    if (next.count + std::int64_t{1} < next.weight) {
      later.push(waiting(next.source, next.count + 1, next.weight, period, spread));
    }
  }
  return stretch;
}

std::int64_t MixOrder::num_sources() const {
  return static_cast<std::int64_t>(stretches_[0].weights.size());
}

const MixOrder::Stretch& MixOrder::stretch_of(std::int64_t number) const {
  assert(number >= 0);
  const auto after = std::upper_bound(
      stretches_.begin(), stretches_.end(), number,
      [](std::int64_t value, const Stretch& stretch) { return value < stretch.begin; });
  return *(after - 1);
}

MixOrder::Draw MixOrder::at(std::int64_t number) const {
  const Stretch& stretch = stretch_of(number);
  const std::int64_t local = number - stretch.begin;
  const Slot slot = stretch.slots[static_cast<std::size_t>(local % stretch.period)];
  return {slot.source, stretch.drawn[slot.source] +
                           local / stretch.period * stretch.weights[slot.source] + slot.count};
}

std::int64_t MixOrder::drawn_in(const Stretch& stretch, std::int64_t number, std::size_t source) {
  const std::int64_t local = number - stretch.begin;
  const std::vector<std::uint32_t>& places = stretch.places[source];
  const auto end = std::lower_bound(places.begin(), places.end(),
                                    static_cast<std::uint32_t>(local % stretch.period));
  return stretch.drawn[source] + local / stretch.period * stretch.weights[source] +
         (end - places.begin());
}

std::int64_t MixOrder::drawn_before(std::int64_t number, std::int64_t source) const {
  assert(0 <= source && source < num_sources());
  return drawn_in(stretch_of(number), number, static_cast<std::size_t>(source));
}

std::int64_t MixOrder::number_of(std::int64_t source, std::int64_t count) const {
  assert(0 <= source && source < num_sources() && count >= 0);
  const std::size_t s = static_cast<std::size_t>(source);
  // The last stretch with at most `count` draws before it.
  const auto after = std::upper_bound(
      stretches_.begin(), stretches_.end(), count,
      [s](std::int64_t value, const Stretch& stretch) { return value < stretch.drawn[s]; });
  const Stretch& stretch = *(after - 1);
  const std::int64_t weight = stretch.weights[s];
  if (weight == 0) return -1;
  const std::int64_t local = count - stretch.drawn[s];
  return stretch.begin + local / weight * stretch.period +
         stretch.places[s][static_cast<std::size_t>(local % weight)];
}

}  // namespace shardwise
