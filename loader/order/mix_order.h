#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shardwise/shard/error.h"

namespace shardwise {

/// From sample number `first_sample` of the run on, sources are drawn by these weights.
struct MixChange {
  std::int64_t first_sample = 0;  ///< counted over the run: epoch * samples per epoch + number
  std::vector<std::int64_t> weights;
};

/// The source of a run's n-th sample, in closed form.
///
/// The sum of the weights is a period. In each, source s comes exactly weights[s] times, and after
/// any number n of samples since the weights began to hold, its count differs from n * weights[s] /
/// sum by less than 1: by at most 1 - 1/(2k-2), for k sources of a weight over 0 (Tijdeman, "The
/// chairman assignment problem", 1980, which also shows that no order does better).
///
/// Immutable, thread-safe.
///
///   const MixOrder order({3, 1});
///   order.at(6).source;           // 1
///   order.at(6).count;            // 1
///   order.number_of(1, 1);        // 6
class MixOrder {
 public:
  /// The sample is draw number `count` from its source, counted over the run.
  struct Draw {
    std::int64_t source, count;

    bool operator==(const Draw&) const = default;
  };

  /// Throws invalid_argument if there is no source or more than kMaxSources, if weights are
  /// negative or sum to 0 or over kMaxPeriod, if a change has another number of weights, or if a
  /// change does not come after the one before (the first after 0).
  explicit MixOrder(std::vector<std::int64_t> weights, std::vector<MixChange> changes = {});

  static constexpr std::int64_t kMaxSources = 4096;
  static constexpr std::int64_t kMaxPeriod = std::int64_t{1} << 22;

  std::int64_t num_sources() const;

  /// Requires number >= 0. O(log(changes)).
  Draw at(std::int64_t number) const;

  /// The number of samples among the first `number` that come from the source. Requires number >=
  /// 0.
  std::int64_t drawn_before(std::int64_t number, std::int64_t source) const;

  /// Inverse of at(): the number of the sample that is draw `count` of the source; -1 if it never
  /// comes because the weight is 0 from some change on. Requires count >= 0.
  std::int64_t number_of(std::int64_t source, std::int64_t count) const;

 private:
  struct Slot {
    std::uint32_t source, count;
  };
  // A stretch of the run with the same weights.
  struct Stretch {
    std::int64_t begin;                              // number of the first sample
    std::vector<std::int64_t> weights, drawn;        // per source; drawn: before the stretch
    std::int64_t period;                             // sum of the weights
    std::vector<Slot> slots;                         // of a period
    std::vector<std::vector<std::uint32_t>> places;  // per source, its slots in rising order
  };
  static Stretch make_stretch(std::int64_t begin, std::vector<std::int64_t> weights);
  const Stretch& stretch_of(std::int64_t number) const;
  static std::int64_t drawn_in(const Stretch& stretch, std::int64_t number, std::size_t source);

  std::vector<Stretch> stretches_;
};

}  // namespace shardwise
