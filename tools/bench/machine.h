#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "shardwise/shard/mesh.h"

namespace shardwise::tools {

/// {"cores": .., "memory_bytes": ..}
nlohmann::ordered_json machine_json();

/// How many emulated devices there must be for those of the mesh to be among them. Throws
/// invalid_argument beyond 2^20, and where the mesh is abstract.
std::int64_t devices_for(const Mesh& mesh);

/// From now on memory that is given back stays with the process, so that only the first round of a
/// benchmark finds it untouched. For the whole process.
void keep_freed_memory();

/// Throws resource_exhausted where the system has less memory left than this; nothing where it does
/// not say.
void check_memory(std::size_t needed_bytes);

/// How far the process's memory grows beyond what it was at construction. Only memory that is
/// touched for the first time counts: measure before any is reused. Thread-compatible.
class PeakMemory {
 public:
  PeakMemory();

  /// Absent where the system does not let us measure it.
  std::optional<std::size_t> growth_bytes() const;

 private:
  std::optional<std::size_t> before_;
};

/// Requires that there are some.
double median(std::vector<double> values);

/// 10^9 bytes per second.
double gb_per_s(std::size_t bytes, double seconds);

}  // namespace shardwise::tools
