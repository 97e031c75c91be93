#include "shardwise/checkpoint/reshard.h"

#include <fmt/core.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "commands/commands.h"
#include "launched.h"
#include "output.h"
#include "parse.h"
#include "shardwise/shard/error.h"

namespace shardwise::tools {
namespace {

struct Arguments {
  Mesh mesh;
  SpecRules rules;
  Codec codec;
};

Arguments parse(const ReshardOptions& options) {
  const std::string rules = text_or_file(options.rules);
  try {
    return {parse_mesh(options.mesh, options.devices), SpecRules::parse(rules),
            parse_codec(options.codec)};
  } catch (const Error& error) {
    throw BadUsage(std::string("reshard: ") + error.what());
  }
}

/// Shows how far it is until it ends.
SaveStats write(const ReshardOptions& options, const Arguments& arguments,
                const std::filesystem::path& source, const ProcessGroup& group) {
  ProgressLine line("reshard");
  shardwise::ReshardOptions work;
  work.save.codec = arguments.codec;
  work.save.existing = options.replace ? Existing::replace : Existing::fail;
  work.save.writers = options.writers;
  work.save.memory_budget_bytes = options.memory_budget_bytes;
  work.read.threads = options.threads;
  if (group.rank() == 0) work.save.progress = line.function();
  work.group = group;
  try {
    return reshard_checkpoint(source, options.target, arguments.mesh, arguments.rules, work);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::already_exists || options.replace) throw;
    throw Error(error.code(),
                fmt::format("{}; --replace writes a new generation of it", error.what()));
  }
}

void print(const ReshardOptions& options, const std::filesystem::path& source, const Mesh& mesh,
           const SaveStats& stats, int processes) {
  if (options.json) {
    print_json({{"source", source.string()},
                {"directory", stats.directory.string()},
                {"mesh", mesh.to_string()},
                {"processes", processes},
                {"logical_bytes", stats.logical_bytes},
                {"stored_bytes", stats.stored_bytes},
                {"chunks", stats.chunks},
                {"seconds", stats.total_seconds}});
    return;
  }
  fmt::print("{} -> {}: mesh {}, {} in {} chunks ({} stored), {:.2f} s{}\n", source.string(),
             stats.directory.string(), mesh.to_string(), human_bytes(stats.logical_bytes),
             stats.chunks, human_bytes(stats.stored_bytes), stats.total_seconds,
             processes == 1 ? "" : fmt::format(" by {} processes", processes));
}

}  // namespace

int run_reshard(const ReshardOptions& options) {
  const Arguments arguments = parse(options);
  const ProcessGroup group = launched_group();
  try {
    const auto source = resolve_checkpoint(options.source);
    SaveStats stats = write(options, arguments, source, group);
    stats.directory = as_given(options.target, stats.directory);
    if (group.rank() == 0) print(options, source, arguments.mesh, stats, group.size());
    return 0;
  } catch (const Error& error) {
    group.abort(error.what());
    constexpr int kEndedByAnother = 3;  // rank 0 tells what has ended the work of all
    if (group.rank() > 0 && error.code() == ErrorCode::cancelled) return kEndedByAnother;
    throw;
  }
}

}  // namespace shardwise::tools
