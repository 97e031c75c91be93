#include "commands/commands.h"
#include "commands/write_step.h"
#include "shardwise/convert/safetensors.h"

namespace shardwise::tools {

int run_import(const ImportOptions& options) {
  return write_step(
      "import", options, [&options] { return options.source; },
      [&options](const std::filesystem::path& path, const StepWriting& writing) {
        const SafetensorsReader source(path);
        shardwise::ReshardOptions work = writing.options;
        work.save.user_json = source.user_json();
        return reshard_checkpoint(source, {options.target, options.step}, writing.mesh,
                                  writing.rules, work);
      });
}

}  // namespace shardwise::tools
