#include <utility>

#include "commands/commands.h"
#include "commands/reshard_plan.h"
#include "commands/write_step.h"
#include "compare.h"
#include "interrupt.h"
#include "output.h"
#include "parse.h"
#include "shardwise/checkpoint/reader.h"
#include "steps/checkpoint_path.h"
#include "steps/chosen_steps.h"

namespace shardwise::tools {
namespace {

/// Status 1 of a dry run: the target's disk may have too little room.
int run_reshard(CheckedReshardOptions& options) {
  choose_with_target("reshard", options.source, options.step, options.words, options.target);
  if (options.dry_run) return show_reshard_plan(options);
  const auto find_source = [&options] { return resolve_checkpoint(options.source); };
  const auto write = [&options](const std::filesystem::path& source, const StepWriting& writing) {
    if (!writing.options.edits.keeps_names() && writing.options.group.rank() == 0 &&
        !CheckpointReader(source, {.pin = false}).objects_json().empty()) {
      print_note(
          "left out: objects that were saved beside the tensors, because the edits change which "
          "names "
          "there are");
    }
    return reshard_checkpoint(source, options.target, writing.mesh, writing.rules, writing.options);
  };
  if (!options.verify) return write_step("reshard", options, find_source, write);
  return write_step(
      "reshard", options, find_source, write,
      [&options](const std::filesystem::path& source, const std::filesystem::path& step) {
        const ReadOptions read{.memory_budget_bytes = options.memory_budget_bytes / 4,
                               .threads = options.threads};
        ProgressLine line("verify");
        const EditedTensors wanted(std::make_shared<CheckpointReader>(source, read),
                                   parse_edits("reshard", options.edits), "verify");
        shardwise::DiffOptions how;
        how.memory_budget_bytes = options.memory_budget_bytes / 4;
        how.threads = options.threads;
        how.progress = [show = line.function()](const Progress& progress) {
          InterruptNote::check("reshard");
          if (show) show(progress);
        };
        check_equal(wanted, CheckpointReader(step, read), step.string(), how);
      });
}

}  // namespace

void declare_reshard(CLI::App& app, Run& run) {
  const auto [reshard, options] = add_command(
      app, run, "reshard",
      "Write a checkpoint again, cut over another mesh; under mpirun the processes divide the work",
      "shardwise reshard runs/checkpoints converted --mesh data=2,model=3 --spec 'w1=-,model;*=-'\n"
      "  shardwise reshard runs/checkpoints weights --mesh model=4 --select 'model.*' --rename "
      "'model.*=*' --cast '*=bf16'",
      run_reshard);
  add_place(reshard, "source", options.source, kCheckpoint);
  add_place(reshard, "target", options.words,
            "Directory or s3://bucket/prefix that gets the step; the source's step may stand "
            "before it: run 20 out");
  add_step(reshard, options.step, false);
  reshard.add_option("--mesh", options.mesh, "Mesh: data=2,model=3")->required();
  add_step_options(reshard, options);
  CLI::Option* const dry_run = reshard.add_flag(
      "--dry-run", options.dry_run,
      "Write nothing; print bytes to read, how often chunks are decoded, memory, files and "
      "room. Exit status 1: the disk may have too little room");
  reshard
      .add_flag("--verify", options.verify,
                "Then compare every tensor of the target with the source; exit status 3 if one "
                "differs")
      ->excludes(dry_run);
}

}  // namespace shardwise::tools
