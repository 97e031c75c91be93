#include "shardwise/checkpoint/reshard.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "commands/commands.h"
#include "output.h"
#include "parse.h"

namespace shardwise::tools {

int run_reshard(const ReshardOptions& options) {
  const Mesh mesh = parse_mesh(options.mesh, options.devices);
  const SpecRules rules = SpecRules::parse(text_or_file(options.rules));
  const auto source = resolve_checkpoint(options.source);

  ProgressLine line("reshard");
  shardwise::ReshardOptions work;
  work.save.codec = parse_codec(options.codec);
  work.save.progress = line.function();
  const SaveStats stats = reshard_checkpoint(source, options.target, mesh, rules, work);

  if (options.json) {
    print_json({{"source", source.string()},
                {"directory", stats.directory.string()},
                {"mesh", mesh.to_string()},
                {"logical_bytes", stats.logical_bytes},
                {"stored_bytes", stats.stored_bytes},
                {"chunks", stats.chunks},
                {"seconds", stats.total_seconds}});
    return 0;
  }
  fmt::print("{} -> {}: mesh {}, {} in {} chunks ({} stored), {:.2f} s\n", source.string(),
             stats.directory.string(), mesh.to_string(), human_bytes(stats.logical_bytes),
             stats.chunks, human_bytes(stats.stored_bytes), stats.total_seconds);
  return 0;
}

}  // namespace shardwise::tools
