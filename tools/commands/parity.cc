#include "shardwise/mend/parity.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "commands/commands.h"
#include "output.h"
#include "parse.h"
#include "steps/checkpoint_path.h"
#include "steps/chosen_steps.h"

namespace shardwise::tools {
namespace {

struct ParityCommandOptions {
  std::string path, step;
  int blocks = 2, threads = 0;
  bool remove = false;
  bool json = false;
};

double percent(std::size_t part, std::size_t whole) {
  return whole == 0 ? 0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

double gb_per_second(const ParityStats& stats) {
  return stats.seconds > 0 ? static_cast<double>(stats.encoded_bytes) / stats.seconds / 1e9 : 0;
}

std::string text_of(const ParityStats& stats, int blocks) {
  std::string text = fmt::format(
      "any {} of 1 MiB of each shard file may be lost, at {}, {:.2f} % of {} in {} shard files; {} "
      "written",
      blocks == 1 ? "block" : fmt::format("{} blocks", blocks), human_bytes(stats.parity_bytes),
      percent(stats.parity_bytes, stats.file_bytes), human_bytes(stats.file_bytes), stats.files,
      stats.written);
  if (stats.encoded_bytes > 0) text += fmt::format(", {:.2f} GB/s", gb_per_second(stats));
  return text;
}

nlohmann::ordered_json json_of(const std::filesystem::path& directory, const ParityStats& stats,
                               int blocks) {
  return {{"directory", directory.string()},
          {"blocks", blocks},
          {"files", stats.files},
          {"written", stats.written},
          {"file_bytes", stats.file_bytes},
          {"parity_bytes", stats.parity_bytes},
          {"encoded_bytes", stats.encoded_bytes},
          {"seconds", stats.seconds},
          {"gb_per_second", gb_per_second(stats)}};
}

int run_parity(ParityCommandOptions& options) {
  choose_step(options.path, options.step);
  auto list = nlohmann::ordered_json::array();
  for (const std::filesystem::path& directory : each_checkpoint(options.path)) {
    if (options.remove) {
      const std::int64_t removed = remove_parity(directory);
      list.push_back({{"directory", directory.string()}, {"removed", removed}});
      if (options.json) continue;
      print_shown(fmt::format("{}: {} parity files removed\n", directory.string(), removed));
      continue;
    }
    ParityStats stats;
    {
      ProgressLine line("parity " + directory.filename().string());
      stats = write_parity(
          directory,
          {.blocks = options.blocks, .threads = options.threads, .progress = line.function()});
    }
    list.push_back(json_of(directory, stats, options.blocks));
    if (options.json) continue;
    print_shown(fmt::format("{}: {}\n", directory.string(), text_of(stats, options.blocks)));
  }
  if (options.json) print_json({{"checkpoints", list}});
  return 0;
}

}  // namespace

void declare_parity(CLI::App& app, Run& run) {
  const auto [parity, options] =
      add_command(app, run, "parity",
                  "Write parity, with which verify --repair needs no copy, and say its cost",
                  "shardwise parity runs/checkpoints/step-00000400 --blocks 4\n"
                  "  shardwise parity runs/checkpoints --remove",
                  run_parity);
  add_path(parity, "path", options.path, "A checkpoint, or a directory of such (all)");
  add_step(parity, options.step, true);
  CLI::Option* const blocks =
      parity
          .add_option("--blocks", options.blocks,
                      "How many blocks of 1 MiB of each shard file may be lost or damaged")
          ->check(whole(1, 127))
          ->capture_default_str();
  parity.add_flag("--remove", options.remove, "Remove the parity")->excludes(blocks);
  add_threads(parity, options.threads);
}

}  // namespace shardwise::tools
