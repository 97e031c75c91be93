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

namespace shardwise::tools {

int run_reshard(const CheckedReshardOptions& options) {
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

}  // namespace shardwise::tools
