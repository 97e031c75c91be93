#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "shardwise/shard/mesh.h"

namespace shardwise::tools {

/// {"cores": .., "memory_bytes": ..}
nlohmann::ordered_json machine_json();

/// How many emulated devices a mesh needs: one more than its largest device id. Throws
/// invalid_argument beyond 2^20, and if the mesh is abstract.
std::int64_t devices_for(const Mesh& mesh);

/// From now on memory that is freed stays with the process, so only the first round of a benchmark
/// touches new memory. For the whole process.
void keep_freed_memory();

/// Throws resource_exhausted if the system has less memory left than this; does nothing if it does
/// not say.
void check_memory(std::size_t needed_bytes);

/// Requires that there are some.
double median(std::vector<double> values);

/// 10^9 bytes per second.
double gb_per_s(std::size_t bytes, double seconds);

}  // namespace shardwise::tools
