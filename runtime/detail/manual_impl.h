#pragma once

#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/runtime/detail/transfer.h"
#include "shardwise/runtime/manual.h"

namespace shardwise {
namespace detail {

inline std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

}  // namespace detail

/// What a manual region has recorded: values with their memory, and the tasks that will fill it.
/// Thread-compatible.
struct ManualRegion::Impl {
  using TaskId = TaskGraph::TaskId;

  /// In place of a task: the data is there already.
  static constexpr TaskId kReady = -1;

  struct State {
    ArraySpec spec;
    std::string label;
    std::vector<TaskId> made_by;                  ///< per position: the last task that writes it
    std::vector<std::shared_ptr<Buffer>> shards;  ///< per position, until it has been run
    std::optional<ShardedArray> array;  ///< once it has been run; from the start for inputs

    Box box(std::int64_t position) const { return spec.sharding.box_at(position, spec.shape); }
    std::byte* data(std::int64_t position) {
      return shards[static_cast<std::size_t>(position)]->data();
    }
    const std::byte* data(std::int64_t position) const {
      return array ? array->buffer(position)->data()
                   : shards[static_cast<std::size_t>(position)]->data();
    }
  };

  Impl(Devices& region_devices, Mesh region_mesh);

  /// The state of a value of this region. Throws invalid_argument, naming the operation.
  const State& at(Value value, std::string_view operation) const;

  /// A value whose memory has been taken but that no task fills yet. Throws resource_exhausted.
  State allocate(const Output& output, std::string_view label) const;

  /// The new value is the last of `values`; references to the others stay valid.
  Value add(State state);

  /// Adds a task for each target that has anything to copy, to start when the sources that it
  /// copies from have been made. Returns the task of each target.
  std::vector<TaskId> add_transfer(detail::Transfer transfer, std::span<const TaskId> made_by);

  /// A new value under another spec, filled from the shards of all the devices that differ from the
  /// target's only along `axes`.
  Value reshard(const State& from, const PartitionSpec& spec, std::span<const std::size_t> axes,
                Reduction reduction, std::string_view operation);

  /// The positions that agree along all axes but these; ascending within each group.
  std::vector<std::vector<std::int64_t>> groups(std::span<const std::size_t> axes) const;

  Devices& devices;
  const Mesh mesh;
  std::deque<State> values;
  std::int64_t cleared = 0;  ///< values that were dropped: the id of values[0]
  TaskGraph graph;           ///< what has been recorded since the last run
};

}  // namespace shardwise
