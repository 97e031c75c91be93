#include "shardwise/tiers/tiers.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "commands/commands.h"
#include "disk_use.h"
#include "output.h"
#include "parse.h"
#include "steps/checkpoint_path.h"

namespace shardwise::tools {
namespace {

struct TiersOptions {
  std::vector<std::string> roots;
  std::string durable, to;  ///< empty: none
  std::optional<std::int64_t> step;
  bool verify = false;
  bool json = false;
};

namespace fs = std::filesystem;

/// "00000 00003": the processes whose directories have part of a step.
std::string processes_of(const FastStep& step) {
  std::string text;
  for (const fs::path& directory : step.directories) {
    const std::string process = directory.parent_path().filename().string();
    text += (text.empty() ? "" : " ") + process.substr(process.find('-') + 1);
  }
  return text;
}

std::string state_of(const FastStep& step) {
  if (!step.nowhere.empty()) return fmt::format("{} nowhere", step.nowhere.size());
  return step.is_set_aside ? "set aside" : "whole";
}

/// Disk use of a step over all processes.
DiskUse disk_use_of(const FastStep& step) {
  DiskUse use;
  for (const fs::path& directory : step.directories) use.add(directory);
  return use;
}

nlohmann::ordered_json step_json(const FastStep& step) {
  auto directories = nlohmann::ordered_json::array();
  for (const fs::path& directory : step.directories) directories.push_back(directory.string());
  const DiskUse use = disk_use_of(step);
  return {{"step", step.step},
          {"whole", step.nowhere.empty()},
          {"set_aside", step.is_set_aside},
          {"files", step.files},
          {"bytes", step.bytes},
          {"alone_bytes", use.bytes() - use.shared_bytes()},
          {"shared_bytes", use.shared_bytes()},
          {"directories", directories},
          {"nowhere", step.nowhere},
          {"damaged", step.damaged}};
}

int list(const TiersOptions& options, const std::vector<fs::path>& roots,
         const FastStepOptions& places) {
  const FastSteps found =
      options.verify ? verify_fast_steps(roots, places) : fast_steps(roots, places);
  const bool is_any_whole =
      std::ranges::any_of(found.steps, [](const FastStep& step) { return step.nowhere.empty(); });
  const bool is_damaged =
      !found.damaged.empty() ||
      std::ranges::any_of(found.steps, [](const FastStep& step) { return !step.damaged.empty(); });
  const int status = !is_any_whole || (options.verify && is_damaged) ? 1 : 0;
  if (options.json) {
    auto steps = nlohmann::ordered_json::array();
    for (const FastStep& step : found.steps) steps.push_back(step_json(step));
    print_json({{"roots", options.roots}, {"steps", steps}, {"damaged", found.damaged}});
    return status;
  }
  if (found.steps.empty()) print_shown("no step of the fast tier\n");
  if (!found.steps.empty()) {
    TextTable table({"step", "files", "bytes", "alone", "shared", "processes", "state"});
    for (const FastStep& step : found.steps) {
      const DiskUse use = disk_use_of(step);
      table.add({std::to_string(step.step), std::to_string(step.files), human_bytes(step.bytes),
                 human_bytes(use.bytes() - use.shared_bytes()), human_bytes(use.shared_bytes()),
                 processes_of(step), state_of(step)});
    }
    print_shown(table);
  }
  for (const FastStep& step : found.steps) {
    for (const std::string& what : step.nowhere) {
      print_shown(fmt::format("step {}: nowhere is {}\n", step.step, what));
    }
    for (const std::string& what : step.damaged) {
      print_shown(fmt::format("step {}: damaged: {}\n", step.step, what));
    }
  }
  for (const std::string& what : found.damaged) print_shown(fmt::format("damaged: {}\n", what));
  return status;
}

int gather(const TiersOptions& options, const std::vector<fs::path>& roots,
           const FastStepOptions& places) {
  const TierStep found = gather_fast_step(roots, options.to, options.step, places);
  if (options.json) {
    print_json({{"step", found.step.step},
                {"directory", found.step.directory.string()},
                {"files", found.files_taken},
                {"bytes", found.bytes_taken},
                {"passed_over", found.passed_over},
                {"damaged", found.damaged},
                {"mended", found.mended}});
    return 0;
  }
  print_shown(fmt::format("step {} is in {}: {} files, {}\n", found.step.step,
                          found.step.directory.string(), found.files_taken,
                          human_bytes(found.bytes_taken)));
  for (const std::string& what : found.passed_over) print_shown(fmt::format("  not {}\n", what));
  for (const std::string& what : found.damaged) print_shown(fmt::format("  damaged: {}\n", what));
  for (const std::string& what : found.mended) print_shown(fmt::format("  put right: {}\n", what));
  return 0;
}

/// Status 1 if no step is whole, or a verified one is damaged.
int run_tiers(TiersOptions& options) {
  std::vector<fs::path> roots;
  for (const std::string& root : options.roots) roots.push_back(existing_root(root));
  FastStepOptions places;
  if (!options.durable.empty()) places.durable = existing_root(options.durable);
  return options.to.empty() ? list(options, roots, places) : gather(options, roots, places);
}

}  // namespace

void declare_tiers(CLI::App& app, Run& run) {
  const auto [tiers, options] = add_command(
      app, run, "tiers",
      "Show the steps of a fast tier, or put one together; exit status 1: none is whole, or "
      "--verify found damage",
      "shardwise tiers /dev/shm/job --durable /shared/job\n"
      "  shardwise tiers host0/job host1/job --verify\n"
      "  shardwise tiers host0/job host1/job --durable /shared/job --to rescued --step 400",
      run_tiers);
  add_path(tiers, "fast", options.roots,
           "Fast root of a TieredManager; those of several hosts, if they were copied or "
           "are mounted");
  tiers
      .add_option("--durable", options.durable,
                  "The durable root: a chunk that is bad in the fast roots may be there")
      ->check(local_path());
  CLI::Option* const verify = tiers.add_flag(
      "--verify", options.verify, "Read every value; say which chunks have no good copy");
  CLI::Option* const to =
      tiers
          .add_option("--to", options.to,
                      "Directory that gets the newest whole step as an ordinary checkpoint, with "
                      "every byte checked")
          ->check(local_path())
          ->excludes(verify);
  tiers.add_option("--step", options.step, "Number of the step instead of the newest one")
      ->check(whole(0))
      ->needs(to);
}

}  // namespace shardwise::tools
