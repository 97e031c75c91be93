#include "shardwise/checkpoint/verify.h"

#include <fmt/core.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "commands/commands.h"
#include "output.h"
#include "parse.h"
#include "shardwise/checkpoint/manager.h"
#include "shardwise/shard/error.h"

namespace shardwise::tools {
namespace {

std::vector<std::filesystem::path> checkpoints(const std::string& path) {
  const std::filesystem::path given = existing_root(path);
  if (is_checkpoint(given) || given.filename().string().rfind("step-", 0) == 0) return {given};
  const CheckpointManager manager(given, {.collect_garbage = false});
  std::vector<std::filesystem::path> directories;
  for (const Step& step : manager.steps()) directories.push_back(step.directory);
  if (directories.empty()) {
    throw Error(ErrorCode::not_found, fmt::format("{} holds no committed checkpoint", path));
  }
  return directories;
}

nlohmann::ordered_json damage_json(const Damage& damage) {
  nlohmann::ordered_json json = {{"file", damage.file}, {"message", damage.message}};
  if (!damage.tensor.empty()) {
    json["tensor"] = damage.tensor;
    json["box"] = box_json(damage.box);
  }
  if (damage.chunk >= 0) json["chunk"] = damage.chunk;
  return json;
}

void print_report(const std::filesystem::path& directory, const VerifyReport& report) {
  fmt::print(
      "{}: {} ({} chunks, {} read)\n", directory.string(),
      report.ok() ? "every byte is as written" : fmt::format("{} damaged", report.damage.size()),
      report.chunks, human_bytes(report.bytes));
  for (const Damage& damage : report.damage) {
    fmt::print("  {}{}{}\n", damage.file, damage.file.empty() ? "" : ": ", damage.message);
  }
}

/// A step that cannot even be opened is damage where there are others to look at, and the failure
/// of the command where it is the only one.
VerifyReport verify(const std::filesystem::path& directory, bool among_others) {
  ProgressLine line("verify " + directory.filename().string());
  try {
    return verify_checkpoint(directory, {.progress = line.function()});
  } catch (const Error& error) {
    if (!among_others) throw;
    VerifyReport report;
    report.damage.push_back({.file = "", .message = error.what()});
    return report;
  }
}

}  // namespace

int run_verify(const VerifyOptions& options) {
  bool ok = true;
  auto list = nlohmann::ordered_json::array();
  const auto directories = checkpoints(options.path);
  for (const auto& directory : directories) {
    const VerifyReport report = verify(directory, directories.size() > 1);
    ok = ok && report.ok();
    if (!options.json) {
      print_report(directory, report);
      continue;
    }
    auto damage = nlohmann::ordered_json::array();
    for (const Damage& d : report.damage) damage.push_back(damage_json(d));
    list.push_back({{"directory", directory.string()},
                    {"ok", report.ok()},
                    {"chunks", report.chunks},
                    {"bytes", report.bytes},
                    {"damage", damage}});
  }
  if (options.json) print_json({{"ok", ok}, {"checkpoints", list}});
  return ok ? 0 : 1;
}

}  // namespace shardwise::tools
