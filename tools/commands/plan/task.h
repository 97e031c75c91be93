#pragma once

#include <cstddef>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "output.h"
#include "shardwise/runtime/graph/graph.h"
#include "shardwise/runtime/spmd/plans.h"
#include "shardwise/shard/mesh.h"

namespace shardwise::tools {

struct PlanOptions {
  std::string program;
  std::optional<std::string> mesh;
  std::int64_t devices = 0;  ///< 0: on the mesh
  std::vector<std::string> marks;
  std::optional<std::string> device;
  std::size_t memory_bytes = 0;           ///< 0: the device's
  std::size_t save_bytes_per_second = 0;  ///< 0: not told
  bool search = false;
  std::optional<std::string> why, why_not;
  std::optional<std::string> html;  ///< a file for the page
  std::string attention = "fused";
  bool json = false;
};

}  // namespace shardwise::tools

// Functions that the parts of `plan` share.
namespace shardwise::tools::plans {

using Json = nlohmann::ordered_json;

/// The program with the marks of the options, and the devices that it is planned for.
struct Task {
  std::string program;
  std::shared_ptr<Graph> graph;
  std::vector<std::optional<PartitionSpec>> file_marks;  ///< by node
  std::optional<Machine> machine;
  std::size_t capacity_bytes = 0;  ///< 0: not asked for

  /// For plans that are compared; `line` shows how far they are, and has to live as long.
  CompareOptions compare(ProgressLine& line, const char* unit) const;
};

/// Reads the program. Throws BadUsage for options that do not go together or fit nothing.
Task load(const PlanOptions& options, const std::optional<Mesh>& mesh);

/// Where a tensor is marked: "line 3" of the file, or "--mark". The task has to live as long.
LineOf line_of(const Task& task);

/// JSON of a cost; times are null without a machine.
Json cost_as_json(const PlanCost& cost, bool has_times);

/// Marks that are chosen for the mesh. Gives the program with them.
SearchedPlan search(const Task& task, const Mesh& mesh);

/// Changes that would make the program fit.
Changes find_changes(const Task& task, const Mesh& mesh);

/// Print the answers to --why and --why-not.
int print_why(const Task& task, const Mesh& mesh, const PlanOptions& options);
int print_why_not(const Task& task, const Mesh& mesh, const PlanOptions& options);

/// The table over the meshes of --devices. Status 1 if nothing fits.
int print_meshes(const Task& task, const PlanOptions& options);

}  // namespace shardwise::tools::plans
