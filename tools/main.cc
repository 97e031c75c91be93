// The `shardwise` command: options in, exit status out. The work is in commands/.
//
// Exit status: 0 done, 1 the answer is no (verify found damage), 2 bad usage, 3 failure.

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <exception>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "commands/commands.h"
#include "output.h"
#include "shardwise/shard/error.h"

namespace shardwise::tools {
namespace {

constexpr int kBadUsage = 2, kFailure = 3;

struct Commands {
  ShardsOptions shards;
  ExplainOptions explain;
  LsOptions ls;
  InspectOptions inspect;
  VerifyOptions verify;
  ReshardOptions reshard;
  BenchSaveOptions bench_save;
  BenchRestoreOptions bench_restore;
  std::function<int()> run;
};

CLI::App* add_command(CLI::App& app, const char* name, const char* description, const char* example,
                      bool* json) {
  CLI::App* command = app.add_subcommand(name, description);
  command->footer(std::string("Example:\n  ") + example);
  command->add_flag("--json", *json, "Print one JSON object on stdout, for scripts");
  return command;
}

void add_threads(CLI::App& command, int& threads) {
  command.add_option("--threads", threads, "Workers; 0: as many as there are cores")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
}

void add_memory_budget(CLI::App& command, std::optional<std::size_t>& bytes) {
  command.add_option("--memory-budget", bytes, "Bytes of host memory beyond the tensors")
      ->check(CLI::Range(std::size_t{8} << 20, std::size_t{1} << 50));
}

void add_bench_options(CLI::App& command, int& repeat, int& threads) {
  command.add_option("--repeat", repeat, "Rounds that are measured, after what warms up")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  add_threads(command, threads);
}

void declare(CLI::App& app, Commands& c) {
  CLI::App* shards = add_command(
      app, "shards", "Show which box of a tensor each device holds",
      "shardwise shards --mesh data=4,model=2 --spec data,model --shape 10,6 --dtype f32",
      &c.shards.json);
  shards->add_option("--mesh", c.shards.mesh, "Mesh: data=4,model=2, or 4,2")->required();
  shards->add_option("--devices", c.shards.devices, "Device ids in mesh order (default 0,1,2,..)");
  CLI::Option_group* cut = shards->add_option_group("How it is cut", "One of these");
  cut->add_option("--spec", c.shards.spec,
                  "Per dim \"-\", an axis, or several joined by \"+\"; \"\" for a scalar; or JAX's "
                  "P('data', None)");
  cut->add_option("--placements", c.shards.placements,
                  "Per mesh axis, as DTensor: \"S(0),R\", \"StridedShard(0, split=2),S(0)\"");
  cut->add_option("--sharding", c.shards.sharding,
                  "XLA text: \"{devices=[4,1,2]<=[8] last_tile_dim_replicate}\"");
  cut->require_option(1);
  shards->add_option("--shape", c.shards.shape, "Extents: 10,6; \"\" for a scalar")->required();
  shards->add_option("--dtype", c.shards.dtype, "Element type")->capture_default_str();
  shards
      ->add_option("--policy", c.shards.policy,
                   "Dims that do not divide: ceil, strict, nested_chunk, balanced or sizes:3+2,-")
      ->capture_default_str();
  shards->add_flag("--short-spec", c.shards.short_spec,
                   "A spec may name fewer dims than the shape has; the others are whole");
  shards->add_option("--svg", c.shards.svg, "Also draw it to this SVG file");
  shards->callback([&c] { c.run = [&c] { return run_shards(c.shards); }; });

  CLI::App* explain = add_command(
      app, "explain", "Show what a reshard moves, or what is wrong with a spec",
      "shardwise explain --from 'data=4,model=2;data,model' --to 'data=2,model=4;-,model' "
      "--shape 8,16\n  shardwise explain --mesh data=4,model=2 --spec data,modle --shape 8,16",
      &c.explain.json);
  explain->add_option("--from", c.explain.from, "MESH;SPEC or MESH;SPEC;POLICY as it lies");
  explain->add_option("--to", c.explain.to, "The same as it is wanted");
  explain->add_option("--mesh", c.explain.mesh, "Mesh that a spec is judged on");
  explain->add_option("--spec", c.explain.spec, "Spec to judge; exit status 1: not valid");
  explain->add_option("--policy", c.explain.policy, "Policy for --spec")->capture_default_str();
  explain->add_option("--shape", c.explain.shape, "Extents: 10,6; \"\" for a scalar")->required();
  explain->add_option("--dtype", c.explain.dtype, "Element type")->capture_default_str();
  explain->callback([&c] { c.run = [&c] { return run_explain(c.explain); }; });

  CLI::App* ls = add_command(app, "ls", "List the checkpoints of a directory",
                             "shardwise ls runs/checkpoints", &c.ls.json);
  ls->add_option("root", c.ls.root, "Directory that holds the steps")->required();
  ls->callback([&c] { c.run = [&c] { return run_ls(c.ls); }; });

  CLI::App* inspect =
      add_command(app, "inspect", "Show the tensors and the user data of a checkpoint",
                  "shardwise inspect runs/checkpoints/step-00000400 --tensor w1", &c.inspect.json);
  inspect
      ->add_option("path", c.inspect.path, "A checkpoint, or a directory of steps (newest valid)")
      ->required();
  inspect->add_option("--tensor", c.inspect.tensors, "Only these (may be repeated)");
  inspect->callback([&c] { c.run = [&c] { return run_inspect(c.inspect); }; });

  CLI::App* verify = add_command(app, "verify", "Read and check every byte; exit status 1: damaged",
                                 "shardwise verify runs/checkpoints", &c.verify.json);
  verify->add_option("path", c.verify.path, "A checkpoint, or a directory of steps (all)")
      ->required();
  verify->callback([&c] { c.run = [&c] { return run_verify(c.verify); }; });

  CLI::App* reshard = add_command(
      app, "reshard", "Write a checkpoint again, cut over another mesh",
      "shardwise reshard runs/checkpoints converted --mesh data=2,model=3 --spec 'w1=-,model;*=-'",
      &c.reshard.json);
  reshard
      ->add_option("source", c.reshard.source,
                   "A checkpoint, or a directory of steps (newest valid)")
      ->required();
  reshard->add_option("target", c.reshard.target, "Directory that gets the step")->required();
  reshard->add_option("--mesh", c.reshard.mesh, "Mesh: data=2,model=3")->required();
  reshard->add_option("--devices", c.reshard.devices,
                      "Device ids in mesh order (default 0,1,2,..)");
  reshard->add_option("--spec", c.reshard.rules,
                      "Rules NAME-PATTERN=SPEC, separated by \";\", or @FILE with one per line; "
                      "first match counts; other tensors keep their spec");
  reshard->add_option("--codec", c.reshard.codec, "auto, zstd or none")->capture_default_str();
  reshard->add_option("--writers", c.reshard.writers, "Shard files, as a job of so many processes")
      ->check(CLI::Range(1, 99'999))
      ->capture_default_str();
  reshard->add_flag("--replace", c.reshard.replace,
                    "Where the target holds the step: write a new generation of it");
  add_memory_budget(*reshard, c.reshard.memory_budget_bytes);
  add_threads(*reshard, c.reshard.threads);
  reshard->callback([&c] { c.run = [&c] { return run_reshard(c.reshard); }; });
}

void declare_bench(CLI::App& app, Commands& c) {
  CLI::App* bench =
      app.add_subcommand("bench", "Measure how fast checkpoints are on a file system");
  bench->footer("Example:\n  shardwise bench save /mnt/fast --codec zstd");
  bench->require_subcommand(1);

  CLI::App* save = add_command(
      *bench, "save", "Durable saves, beside raw writes of the same bytes",
      "shardwise bench save /mnt/fast --tensors 64 --shape 2048,4096 --dtype f32 --codec zstd\n"
      "  shardwise bench save /mnt/fast --codec none --keep-last 1\n"
      "  shardwise bench save runs/bench --data index --keep\n"
      "It writes into a fresh directory inside DIR and removes it; it needs room for the tensors "
      "on\n"
      "the disk, and twice in memory.",
      &c.bench_save.json);
  save->add_option("dir", c.bench_save.directory, "Directory on the file system; may be new")
      ->required();
  save->add_option("--tensors", c.bench_save.tensors, "How many")
      ->check(CLI::Range(1, 100'000))
      ->capture_default_str();
  save->add_option("--shape", c.bench_save.shape, "Extents of each")->capture_default_str();
  save->add_option("--dtype", c.bench_save.dtype, "Element type")->capture_default_str();
  save->add_option("--mesh", c.bench_save.mesh, "Mesh that they lie on")->capture_default_str();
  save->add_option("--spec", c.bench_save.spec, "How they are cut over it")->capture_default_str();
  save->add_option("--codec", c.bench_save.codec, "auto, zstd or none")->capture_default_str();
  save->add_option("--data", c.bench_save.data,
                   "gaussian; index: each element is its global row-major index modulo 2^20; zeros")
      ->capture_default_str();
  save->add_flag("--async", c.bench_save.async, "Save behind the caller's back");
  CLI::Option* keep_last = save->add_option(
      "--keep-last", c.bench_save.keep_last,
      "As a job that keeps so many: each save removes an older one; tells both times");
  keep_last->check(CLI::Range(1, 1000));
  save->add_flag("--keep", c.bench_save.keep,
                 "Leave the checkpoint: DIR becomes its root, and must hold no steps")
      ->excludes(keep_last);
  add_memory_budget(*save, c.bench_save.memory_budget_bytes);
  add_bench_options(*save, c.bench_save.repeat, c.bench_save.threads);
  save->callback([&c] { c.run = [&c] { return run_bench_save(c.bench_save); }; });

  CLI::App* restore = add_command(
      *bench, "restore",
      "Restores, beside raw reads of the same files; exit status 1: other values",
      "shardwise bench restore runs/bench --mesh data=2,model=4 --cold", &c.bench_restore.json);
  restore
      ->add_option("dir", c.bench_restore.directory,
                   "A checkpoint, or a directory of steps (newest valid)")
      ->required();
  restore->add_option("--mesh", c.bench_restore.mesh, "Mesh to restore onto (default: as saved)");
  restore->add_option("--spec", c.bench_restore.spec, "Spec of all tensors (default: as saved)");
  restore->add_flag("--cold", c.bench_restore.cold,
                    "Drop the files from the page cache before each measurement");
  restore->add_flag("--fresh-memory", c.bench_restore.fresh_memory,
                    "Restore into memory that is new to the process each time, as a job does that "
                    "starts, not into that of the round before");
  add_bench_options(*restore, c.bench_restore.repeat, c.bench_restore.threads);
  restore->callback([&c] { c.run = [&c] { return run_bench_restore(c.bench_restore); }; });
}

bool asks_for_json(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--json") return true;
  }
  return false;
}

void report(bool json, std::string_view code, std::string_view message) {
  if (json) print_json({{"error", {{"code", code}, {"message", message}}}});
  fmt::print(stderr, "shardwise: {}\n", message);
}

int main(int argc, char** argv) {
  CLI::App app{"Sharded tensors: what each device holds, and checkpoints that any mesh can read"};
  app.require_subcommand(0, 1);  // none is reported below, after words that are no command
  app.set_version_flag("--version", std::string(SHARDWISE_VERSION));
  Commands commands;
  declare(app, commands);
  declare_bench(app, commands);
  const bool json = asks_for_json(argc, argv);
  try {
    app.parse(argc, argv);
    if (commands.run) return commands.run();
    report(json, "usage",
           "a command is needed: shards, explain, ls, inspect, verify, reshard or bench");
    return kBadUsage;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    report(json, "usage", error.what());
    if (!json) fmt::print(stderr, "Run with --help for more\n");
    return kBadUsage;
  } catch (const BadUsage& error) {
    report(json, "usage", error.what());
    return kBadUsage;
  } catch (const Error& error) {
    report(json, name(error.code()), error.what());
  } catch (const std::exception& error) {
    report(json, "internal", error.what());
  }
  return kFailure;
}

}  // namespace
}  // namespace shardwise::tools

int main(int argc, char** argv) { return shardwise::tools::main(argc, argv); }
