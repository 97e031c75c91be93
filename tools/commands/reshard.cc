#include "commands/commands.h"
#include "commands/write_step.h"
#include "parse.h"

namespace shardwise::tools {

int run_reshard(const ReshardOptions& options) {
  return write_step(
      "reshard", options, [&options] { return resolve_checkpoint(options.source); },
      [&options](const std::filesystem::path& source, const StepWriting& writing) {
        return reshard_checkpoint(source, options.target, writing.mesh, writing.rules,
                                  writing.options);
      });
}

}  // namespace shardwise::tools
