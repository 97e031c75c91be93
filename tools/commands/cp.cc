#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "commands/commands.h"
#include "interrupt.h"
#include "output.h"
#include "parse.h"
#include "shardwise/bucket/bucket.h"
#include "steps/checkpoint_path.h"
#include "steps/chosen_steps.h"

namespace shardwise::tools {
namespace {

struct CpOptions {
  std::string source, target, step;
  std::vector<std::string> words;
  CopyOptions copy;
  bool json = false;
};

int run_cp(CpOptions& options) {
  choose_with_target("cp", options.source, options.step, options.words, options.target);
  const std::filesystem::path from = resolve_checkpoint(options.source);
  ProgressLine line("cp");
  options.copy.progress = [show = line.function()](const Progress& progress) {
    InterruptNote::check("cp");
    if (show) show(progress);
  };
  const CopyReport report = copy_step(from, options.target, options.copy);
  if (options.json) {
    print_json({{"from", from.string()},
                {"directory", report.directory.string()},
                {"files", report.files},
                {"bytes", report.bytes},
                {"present_bytes", report.present}});
    return 0;
  }
  const std::string present =
      report.present == 0 ? std::string()
                          : fmt::format(", {} of them there already", human_bytes(report.present));
  print_shown(fmt::format("{}: {} files, {}{}\n", report.directory.string(), report.files,
                          human_bytes(report.bytes), present));
  return 0;
}

}  // namespace

void declare_cp(CLI::App& app, Run& run) {
  const auto [cp, options] = add_command(
      app, run, "cp",
      "Copy a step into a bucket, out of one, or between folders; the copy is read back and "
      "compared before it has its name",
      "shardwise cp runs/checkpoints@latest s3://bucket/runs\n"
      "  shardwise cp s3://bucket/runs@100 restored",
      run_cp);
  add_place(cp, "source", options.source, kCheckpoint);
  add_place(cp, "target", options.words,
            "Directory or s3://bucket/prefix that gets the step; the source's step may stand "
            "before it: run 20 s3://bucket/runs");
  add_step(cp, options.step, false);
  cp.add_flag("--replace", options.copy.replace,
              "Put a new generation in the place of a step that is there with other bytes");
  cp.add_option("--requests", options.copy.requests, "Requests at a time, each of 16 MiB")
      ->check(whole(1, 256))
      ->capture_default_str();
}

}  // namespace shardwise::tools
