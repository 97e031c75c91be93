#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shardwise/shard/mesh.h"

namespace gpt {

/// GPipe's schedule, which shardwise::pipeline() runs: trip t of the forward scan has stage s at
/// micro-batch t - s; the backward scan has the same trips from the last to the first.
struct Schedule {
  std::int64_t stages = 1, micro_batches = 1;

  std::int64_t trips() const { return micro_batches + stages - 1; }  ///< of each scan

  /// The micro-batch of a stage in a forward trip; absent in a bubble.
  std::optional<std::int64_t> micro_batch(std::int64_t stage, std::int64_t trip) const;

  /// The share of its time that a stage waits.
  double bubble() const { return static_cast<double>(stages - 1) / static_cast<double>(trips()); }
};

/// A stage's part of a plan.
struct StageShare {
  std::int64_t first_layer = 0, last_layer = 0;
  std::size_t peak_bytes = 0;  ///< of the stage's device with the most
};

/// Each stage's share, if `peaks` has the planned peak of each position of a mesh with the axis
/// "stage".
std::vector<StageShare> stage_shares(const shardwise::Mesh& mesh, std::int64_t layers,
                                     const std::vector<std::size_t>& peaks);

/// The schedule in words and, for each stage, its layers and peak.
std::string to_string(const Schedule& schedule, const std::vector<StageShare>& shares);

/// A picture: a row for each stage, a column for each trip, both scans.
std::string to_svg(const Schedule& schedule);

}  // namespace gpt
