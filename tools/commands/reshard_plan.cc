#include "commands/reshard_plan.h"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "commands/write_step.h"
#include "output.h"
#include "parse.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/object/bucket_path.h"
#include "steps/checkpoint_path.h"

namespace shardwise::tools {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kBesideBudget = std::size_t{64} << 20;  // ReshardOptions::save

/// The free bytes of the disk that holds the target, or will; absent for a bucket. Throws io if
/// nothing may be written there.
std::optional<std::size_t> free_bytes_at(const fs::path& target) {
  if (in_bucket(target)) return std::nullopt;
  fs::path at = fs::absolute(target);
  std::error_code ignored;
  while (at.has_relative_path() && !fs::exists(at, ignored)) at = at.parent_path();
  if (::access(at.c_str(), W_OK | X_OK) != 0) {
    throw Error(ErrorCode::io, fmt::format("reshard: target {}: found no right to write in {}",
                                           target.string(), at.string()));
  }
  return fs::space(at).available;
}

bool fits(const ReshardPlan& plan, std::optional<std::size_t> free_bytes) {
  return !free_bytes || *free_bytes >= plan.most_file_bytes;
}

double ratio(std::size_t a, std::size_t b) {
  return b == 0 ? 1 : static_cast<double>(a) / static_cast<double>(b);
}

void print_plan(const ReshardPlan& plan, const std::string& source, const StepWriting& writing,
                const CheckedReshardOptions& options, std::optional<std::size_t> free_bytes) {
  if (plan.skipped) {
    print_shown(fmt::format("{}: step {} is already there: nothing would be written\n",
                            options.target, plan.step));
    return;
  }
  print_shown(fmt::format("{} -> {}: mesh {}, step {}; nothing is written\n", source,
                          options.target, writing.mesh.to_string(), plan.step));
  const auto line = [](const char* what, const std::string& text) {
    print_shown(fmt::format("  {:8} {}\n", what, text));
  };
  line("tensors", fmt::format("{} of {}, {}", plan.tensors, plan.source_tensors,
                              human_bytes(plan.logical_bytes)));
  line("reads",
       fmt::format("{}: {}, decoded {}; {} decoded for {} that are needed "
                   "(amplification {:.2f})",
                   human_bytes(plan.read_bytes), counted(plan.chunks, "chunk"),
                   counted(plan.decodes, "time"), human_bytes(plan.decoded_bytes),
                   human_bytes(plan.needed_bytes), ratio(plan.decoded_bytes, plan.needed_bytes)));
  line("memory", fmt::format("{} at most, and less than {} for threads and tables",
                             human_bytes(options.memory_budget_bytes), human_bytes(kBesideBudget)));
  line("writes",
       fmt::format("{} in {}, {}; {} at most, if nothing shrinks", human_bytes(plan.logical_bytes),
                   counted(plan.files, "shard file"), counted(plan.file_chunks, "chunk"),
                   human_bytes(plan.most_file_bytes)));
  if (!free_bytes) return;
  line("room", fmt::format("{} are free on the target's disk{}", human_bytes(*free_bytes),
                           fits(plan, free_bytes) ? "" : ": may be too little"));
}

nlohmann::ordered_json plan_json(const ReshardPlan& plan, const std::string& source,
                                 const StepWriting& writing, const CheckedReshardOptions& options,
                                 std::optional<std::size_t> free_bytes) {
  return {{"dry_run", true},
          {"skipped", plan.skipped},
          {"source", source},
          {"target", options.target},
          {"step", plan.step},
          {"mesh", writing.mesh.to_string()},
          {"tensors", plan.tensors},
          {"source_tensors", plan.source_tensors},
          {"logical_bytes", plan.logical_bytes},
          {"read_bytes", plan.read_bytes},
          {"chunks", plan.chunks},
          {"decodes", plan.decodes},
          {"decoded_bytes", plan.decoded_bytes},
          {"needed_bytes", plan.needed_bytes},
          {"amplification", ratio(plan.decoded_bytes, plan.needed_bytes)},
          {"memory_bytes", options.memory_budget_bytes + kBesideBudget},
          {"files", plan.files},
          {"file_chunks", plan.file_chunks},
          {"most_file_bytes", plan.most_file_bytes},
          {"free_bytes", free_bytes ? nlohmann::ordered_json(*free_bytes) : nullptr},
          {"fits", fits(plan, free_bytes)}};
}

}  // namespace

int show_reshard_plan(const CheckedReshardOptions& options) {
  const StepWriting writing = parse_step_writing("reshard", options);
  try {
    check_target("reshard", options);
    const fs::path source = resolve_checkpoint(options.source);
    const ReshardPlan plan =
        plan_reshard(source, options.target, writing.mesh, writing.rules, writing.options);
    const std::optional<std::size_t> free_bytes = free_bytes_at(options.target);
    if (writing.options.group.rank() != 0) return 0;
    if (options.json) {
      print_json(plan_json(plan, source.string(), writing, options, free_bytes));
    } else {
      print_plan(plan, source.string(), writing, options, free_bytes);
    }
    return fits(plan, free_bytes) ? 0 : 1;
  } catch (const Error& error) {
    throw_as_usage(error);
  }
}

}  // namespace shardwise::tools
