#include "shardwise/checkpoint/verify.h"

#include <fmt/core.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>

#include "commands/commands.h"
#include "output.h"
#include "parse.h"
#include "shardwise/checkpoint/manager.h"
#include "shardwise/shard/error.h"

namespace shardwise::tools {
namespace {

bool names_one(const std::filesystem::path& path) {
  return is_checkpoint(path) || path.filename().string().rfind("step-", 0) == 0;
}

std::vector<std::filesystem::path> checkpoints(const std::string& path) {
  const std::filesystem::path given = existing_root(path);
  if (names_one(given)) return {given};
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

/// A committed step that cannot even be opened is damaged; one of a directory of steps that is gone
/// now was removed, and there is nothing to say.
std::optional<VerifyReport> verify(const std::filesystem::path& directory, bool one_of_a_root) {
  ProgressLine line("verify " + directory.filename().string());
  try {
    return verify_checkpoint(directory, {.progress = line.function()});
  } catch (const Error& error) {
    std::error_code ignored;
    const bool there = std::filesystem::is_directory(directory, ignored);
    if (one_of_a_root && !there) return std::nullopt;
    if (!one_of_a_root && (!there || error.code() != ErrorCode::not_found)) throw;
    VerifyReport report;
    report.damage.push_back({.file = "", .message = error.what()});
    return report;
  }
}

}  // namespace

int run_verify(const VerifyOptions& options) {
  bool ok = true;
  auto list = nlohmann::ordered_json::array();
  const bool root = !names_one(options.path);
  for (const auto& directory : checkpoints(options.path)) {
    const std::optional<VerifyReport> verified = verify(directory, root);
    if (!verified) continue;
    const VerifyReport& report = *verified;
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
