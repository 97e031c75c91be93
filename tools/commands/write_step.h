#pragma once

#include <functional>
#include <string>

#include "options.h"
#include "shardwise/reshape/reshard.h"

namespace shardwise::tools {

struct ReshardOptions {
  std::string source, target, mesh, devices, rules, codec = "zstd";
  std::int64_t writers = 1;
  int threads = 0;
  std::size_t memory_budget_bytes = SaveOptions().memory_budget_bytes;
  EditOptions edits;
  Existing existing = Existing::fail;
  bool json = false;
};

/// Options that reshard and import share, other than source, target and mesh.
void add_step_options(CLI::App& command, ReshardOptions& options);

/// Meaning of the options of reshard and import, and the processes that mpirun has started.
struct StepWriting {
  Mesh mesh;
  SpecRules rules;
  shardwise::ReshardOptions options;
};

/// Throws BadUsage.
StepWriting parse_step_writing(const std::string& command, const ReshardOptions& options);

/// Throws the error as the user of the command needs it.
[[noreturn]] void throw_as_usage(const Error& error);

/// Throws not_found if the target is a file.
void check_target(const std::string& command, const ReshardOptions& options);

/// Writes one step of a root by `write`, together with the other processes that mpirun has started;
/// shows progress, and prints a summary. `command`: "reshard". `find_source` returns the source; it
/// is called once the options are known to be right. `verify`, if not null, compares the result
/// with the source. Returns the exit status. Ctrl-C ends it with a line that says what
/// is kept.
int write_step(const std::string& command, const ReshardOptions& options,
               const std::function<std::filesystem::path()>& find_source,
               const std::function<SaveStats(const std::filesystem::path& source,
                                             const StepWriting& writing)>& write,
               const std::function<void(const std::filesystem::path& source,
                                        const std::filesystem::path& step)>& verify = nullptr);

}  // namespace shardwise::tools
