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
#include "places.h"
#include "shardwise/mend/repair.h"
#include "shardwise/shard/error.h"
#include "steps/checkpoint_path.h"
#include "steps/chosen_steps.h"

namespace shardwise::tools {
namespace {

struct VerifyOptions {
  std::string path, step;
  bool repair = false;
  std::vector<std::string> from;
  bool json = false;
};

// Exit statuses: only bytes that were read prove damage; failing to read them is a failure like any
// other.
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
    const bool there = is_folder(directory);
    if (one_of_a_root && !there) return std::nullopt;
    const bool damaged = error.code() == ErrorCode::not_found;
    if (!one_of_a_root && !(there && damaged)) throw;
    RepairReport report;
    (damaged ? report.left.damage : report.left.unread)
        .push_back({.file = "", .message = error.what()});
    return report;
  }
}

int run_verify(VerifyOptions& options) {
  choose_step(options.path, options.step);
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
      print_shown(fmt::format("{}: {}\n", directory.string(), to_string(*verified)));
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

}  // namespace

void declare_verify(CLI::App& app, Run& run) {
  const auto [verify, options] = add_command(
      app, run, "verify", "Read and check every value; exit status 1: damaged, 3: could not tell",
      "shardwise verify runs/checkpoints\n"
      "  shardwise verify runs/checkpoints/step-00000400 --repair --from /backup/checkpoints",
      run_verify);
  add_place(verify, "path", options.path, "A checkpoint, or a directory of such (all)");
  add_step(verify, options.step, true);
  CLI::Option* const repair = verify.add_flag(
      "--repair", options.repair,
      "Make damaged chunks and files again, exactly as they were, from other steps, copies and "
      "parity");
  verify
      .add_option(
          "--from", options.from,
          "A copy of the checkpoint, or a directory of steps that has one (may be repeated)")
      ->check(local_path())
      ->needs(repair);
}

}  // namespace shardwise::tools
