#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "shardwise/shard/box.h"
#include "shardwise/shard/dims.h"
#include "shardwise/shard/mesh.h"
#include "shardwise/shard/partition_spec.h"

namespace shardwise {

// Values in JSON files of expected results (tests/data/README.md).

/// [8, 3]
inline Dims dims_of(const nlohmann::json& numbers) {
  return Dims(std::span<const std::int64_t>(numbers.get<std::vector<std::int64_t>>()));
}

/// Unnamed axes of these sizes, or with the names where they are not null.
inline std::vector<Axis> axes_of(const nlohmann::json& sizes, const nlohmann::json& names = {}) {
  std::vector<Axis> axes;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    axes.push_back({names.is_null() ? "" : names[i].get<std::string>(), sizes[i]});
  }
  return axes;
}

/// One entry per dim: null, an axis's name or number, or a list of these.
inline PartitionSpec spec_of(const nlohmann::json& spec) {
  const auto axis_name = [](const nlohmann::json& axis) {
    return axis.is_number() ? std::to_string(axis.get<std::int64_t>()) : axis.get<std::string>();
  };
  std::vector<PartitionSpec::Entry> entries;
  for (const nlohmann::json& entry : spec) {
    PartitionSpec::Entry& named = entries.emplace_back();
    if (entry.is_array()) {
      for (const nlohmann::json& axis : entry) named.push_back(axis_name(axis));
    } else if (!entry.is_null()) {
      named.push_back(axis_name(entry));
    }
  }
  return PartitionSpec(entries);
}

/// [[begin, end], ...]
inline nlohmann::json slices_of(const Box& box) {
  nlohmann::json slices = nlohmann::json::array();
  for (std::size_t dim = 0; dim < box.rank(); ++dim) {
    slices.push_back({box.begin(dim), box.end(dim)});
  }
  return slices;
}

/// The numbers of nested lists, row-major.
inline std::vector<std::int64_t> flatten(const nlohmann::json& nested) {
  if (nested.is_number()) return {nested.get<std::int64_t>()};
  std::vector<std::int64_t> numbers;
  for (const nlohmann::json& part : nested) {
    const std::vector<std::int64_t> inner = flatten(part);
    numbers.insert(numbers.end(), inner.begin(), inner.end());
  }
  return numbers;
}

}  // namespace shardwise
