#include "shardwise/checkpoint/verify.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "commands/commands.h"
#include "output.h"
#include "parse.h"
#include "shardwise/shard/error.h"
#include "steps/checkpoint_path.h"

namespace shardwise::tools {
namespace {

// Exit statuses: damage is what the bytes prove; bytes that could not be read are a failure like
// any other.
constexpr int kDamaged = 1, kCouldNotTell = 3;

nlohmann::ordered_json damage_json(const Damage& damage) {
  nlohmann::ordered_json json = {{"file", damage.file}, {"message", damage.message}};
  if (!damage.tensor.empty()) {
    json["tensor"] = damage.tensor;
    json["box"] = box_json(damage.box);
  }
  if (damage.chunk >= 0) json["chunk"] = damage.chunk;
  return json;
}

nlohmann::ordered_json damage_json(const std::vector<Damage>& list) {
  auto json = nlohmann::ordered_json::array();
  for (const Damage& damage : list) json.push_back(damage_json(damage));
  return json;
}

nlohmann::ordered_json repaired_json(const std::vector<Repaired>& list) {
  auto json = nlohmann::ordered_json::array();
  for (const Repaired& repaired : list) {
    json.push_back(damage_json(repaired.damage));
    json.back()["from"] = repaired.from;
  }
  return json;
}

nlohmann::ordered_json lost_json(const std::vector<RepairReport::Lost>& list) {
  auto json = nlohmann::ordered_json::array();
  for (const auto& [tensor, box] : list)
    json.push_back({{"tensor", tensor}, {"box", box_json(box)}});
  return json;
}

std::string verdict(const VerifyReport& report) {
  if (report.ok()) {
    return report.index_not_proved ? "every byte has its hash; what index.h5 says is not proved, "
                                     "as in a format this old"
                                   : "every byte is as written";
  }
  const std::string unread = fmt::format("{} could not be read", report.unread.size());
  if (report.damage.empty()) return unread + ", so that nothing is proved";
  return fmt::format("{} damaged{}", report.damage.size(),
                     report.unread.empty() ? "" : ", " + unread);
}

void print_report(const std::filesystem::path& directory, const RepairReport& repair) {
  const VerifyReport& report = repair.left;
  const std::string repaired =
      repair.repaired.empty() ? "" : fmt::format("{} repaired, ", repair.repaired.size());
  print_shown(fmt::format("{}: {}{} ({}, {} read)\n", directory.string(), repaired, verdict(report),
                          counted(report.chunks, "chunk"), human_bytes(report.bytes)));
  for (const auto& [damage, from] : repair.repaired) {
    print_shown(fmt::format("  repaired from {}: {}: {}\n", from, damage.file, damage.message));
  }
  if (report.parity_files > 0) {
    print_shown(fmt::format(
        "  parity: {}, each survives the loss of any {} of 1 MiB\n",
        counted(report.parity_files, "shard file"),
        report.parity_blocks == 1 ? "block" : fmt::format("{} blocks", report.parity_blocks)));
  }
  const auto print = [](const std::vector<Damage>& list, const char* what) {
    for (const Damage& damage : list) {
      print_shown(fmt::format("  {}{}{}{}\n", what, damage.file, damage.file.empty() ? "" : ": ",
                              damage.message));
    }
  };
  print(report.damage, "");
  print(report.unread, "not read: ");
  for (const auto& [tensor, box] : repair.lost) {
    print_shown(fmt::format("  lost: tensor {:?} {}\n", tensor, to_string(box)));
  }
}

/// A step without a manifest is damaged. If a step in a directory of steps cannot be read, or is
/// too new for this build, nothing is known of it. A step that is gone now was removed.
std::optional<RepairReport> verify(const std::filesystem::path& directory,
                                   const VerifyOptions& options, bool one_of_a_root) {
  ProgressLine line("verify " + directory.filename().string());
  try {
    if (!options.repair) {
      return RepairReport{.repaired = {},
                          .left = verify_checkpoint(directory, {.progress = line.function()}),
                          .lost = {}};
    }
    return repair_checkpoint(directory, {.from = {options.from.begin(), options.from.end()},
                                         .progress = line.function()});
  } catch (const Error& error) {
    if (error.code() == ErrorCode::invalid_argument) throw;  // no copy where there should be one
    std::error_code ignored;
    const bool there = std::filesystem::is_directory(directory, ignored);
    if (one_of_a_root && !there) return std::nullopt;
    const bool damaged = error.code() == ErrorCode::not_found;
    if (!one_of_a_root && !(there && damaged)) throw;
    RepairReport report;
    (damaged ? report.left.damage : report.left.unread)
        .push_back({.file = "", .message = error.what()});
    return report;
  }
}

}  // namespace

int run_verify(const VerifyOptions& options) {
  bool damaged = false, unread = false;
  auto list = nlohmann::ordered_json::array();
  const bool root = !names_checkpoint(options.path);
  for (const auto& directory : each_checkpoint(options.path)) {
    const std::optional<RepairReport> verified = verify(directory, options, root);
    if (!verified) continue;
    const VerifyReport& report = verified->left;
    damaged = damaged || !report.damage.empty();
    unread = unread || !report.unread.empty();
    if (!options.json) {
      print_report(directory, *verified);
      continue;
    }
    list.push_back({{"directory", directory.string()},
                    {"ok", report.ok()},
                    {"chunks", report.chunks},
                    {"bytes", report.bytes},
                    {"parity_files", report.parity_files},
                    {"parity_blocks", report.parity_blocks},
                    {"damage", damage_json(report.damage)},
                    {"unread", damage_json(report.unread)}});
    if (!options.repair) continue;
    list.back()["repaired"] = repaired_json(verified->repaired);
    list.back()["lost"] = lost_json(verified->lost);
  }
  if (options.json) print_json({{"ok", !damaged && !unread}, {"checkpoints", list}});
  return damaged ? kDamaged : unread ? kCouldNotTell : 0;
}

}  // namespace shardwise::tools
