#include "commands/commands.h"
#include "commands/write_step.h"
#include "parse.h"
#include "shardwise/convert/model.h"

namespace shardwise::tools {

int run_import(const ImportOptions& options) {
  return write_step(
      "import", options, [&options] { return options.source; },
      [&options](const std::filesystem::path& path, const StepWriting& writing) {
        const std::unique_ptr<ModelReader> source = open_model(path);
        shardwise::ReshardOptions work = writing.options;
        work.save.user_json = source->user_json();
        return reshard_checkpoint(*source, {options.target, options.step}, writing.mesh,
                                  writing.rules, work);
      });
}

}  // namespace shardwise::tools
