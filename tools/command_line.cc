#include "command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "commands/commands.h"
#include "options.h"
#include "parse.h"
#include "shardwise/shard/error.h"

namespace shardwise::tools {
namespace {

struct Commands {
  ShardsOptions shards;
  ExplainOptions explain;
  LsOptions ls;
  InspectOptions inspect;
  VerifyOptions verify;
  DiffOptions diff;
  CatOptions cat;
  StatsOptions stats;
  CheckedReshardOptions reshard;
  ImportOptions imported;
  ExportOptions exported;
  BatchesOptions batches;
  BenchSaveOptions bench_save;
  BenchRestoreOptions bench_restore;
  std::function<int()> run;
};

constexpr std::string_view kHelp = "help";
constexpr const char* kCheckpoint = "A checkpoint, or a directory of steps (newest valid)";
constexpr const char* kTensors =
    "A checkpoint, a directory of steps (newest valid), or safetensors files";

/// A command that ends in `run(options)`.
template <class Options>
CLI::App& add_command(CLI::App& app, const char* name, const char* description, const char* example,
                      Commands& c, Options& options, int (*run)(const Options&)) {
  CLI::App& command = *app.add_subcommand(name, description);
  command.footer(std::string("Example:\n  ") + example);
  command.add_flag("--json", options.json, "Print one JSON object on stdout, for scripts");
  command.callback([&c, &options, run] { c.run = [&options, run] { return run(options); }; });
  return command;
}

void add_shards(CLI::App& app, Commands& c) {
  CLI::App& shards =
      add_command(app, "shards", "Show which box of a tensor each device holds",
                  "shardwise shards --mesh data=4,model=2 --spec data,model --shape 10,6 "
                  "--dtype f32",
                  c, c.shards, run_shards);
  shards.add_option("--mesh", c.shards.mesh, "Mesh: data=4,model=2, or 4,2")->required();
  shards.add_option("--devices", c.shards.devices, "Device ids in mesh order (default 0,1,2,..)");
  shards.add_option("--slices", c.shards.slices,
                    "Slices along each mesh axis, 2,1: a hybrid mesh, whose devices are numbered "
                    "slice by slice");
  shards.add_option("--torus", c.shards.torus,
                    "Torus of the devices (of each slice), 2,2, numbered row by row: neighbours in "
                    "the mesh are near in it");
  CLI::Option_group* cut = shards.add_option_group("How it is cut", "One of these");
  cut->add_option("--spec", c.shards.spec,
                  "Per dim \"-\", an axis, or several joined by \"+\"; \"\" for a scalar; or JAX's "
                  "P('data', None)");
  cut->add_option("--placements", c.shards.placements,
                  "Per mesh axis, as DTensor: \"S(0),R\", \"StridedShard(0, split=2),S(0)\"");
  cut->add_option("--sharding", c.shards.sharding,
                  "XLA text: \"{devices=[4,1,2]<=[8] last_tile_dim_replicate}\"");
  shards.add_option("--shape", c.shards.shape, "Extents: 10,6; \"\" for a scalar")->required();
  shards.add_option("--dtype", c.shards.dtype, "Element type")->capture_default_str();
  shards
      .add_option("--policy", c.shards.policy,
                  "Dims that do not divide: ceil, strict, nested_chunk, balanced or sizes:3+2,-")
      ->capture_default_str();
  shards.add_flag("--short-spec", c.shards.short_spec,
                  "A spec may name fewer dims than the shape has; the others are whole");
  shards.add_option("--svg", c.shards.svg, "Also draw it to this SVG file");
}

void add_explain(CLI::App& app, Commands& c) {
  CLI::App& explain = add_command(
      app, "explain", "Show what a reshard moves, or what is wrong with a spec",
      "shardwise explain --from 'data=4,model=2;data,model' --to 'data=2,model=4;-,model' "
      "--shape 8,16\n  shardwise explain --mesh data=4,model=2 --spec data,modle --shape 8,16",
      c, c.explain, run_explain);
  explain.add_option("--from", c.explain.from, "MESH;SPEC or MESH;SPEC;POLICY as it is now");
  explain.add_option("--to", c.explain.to, "The same as it is wanted");
  explain.add_option("--mesh", c.explain.mesh, "Mesh that a spec is judged on");
  explain.add_option("--spec", c.explain.spec, "Spec to judge; exit status 1: not valid");
  explain.add_option("--policy", c.explain.policy, "Policy for --spec")->capture_default_str();
  explain.add_option("--shape", c.explain.shape, "Extents: 10,6; \"\" for a scalar")->required();
  explain.add_option("--dtype", c.explain.dtype, "Element type")->capture_default_str();
}

void add_looks(CLI::App& app, Commands& c) {
  CLI::App& ls = add_command(app, "ls", "List the checkpoints of a directory",
                             "shardwise ls runs/checkpoints", c, c.ls, run_ls);
  ls.add_option("root", c.ls.root, "Directory that holds the steps")
      ->check(local_path())
      ->required();

  CLI::App& inspect = add_command(
      app, "inspect", "Show the tensors and the user data of a checkpoint",
      "shardwise inspect runs/checkpoints/step-00000400 --tensor w1", c, c.inspect, run_inspect);
  inspect.add_option("path", c.inspect.path, kCheckpoint)->check(local_path())->required();
  inspect.add_option("--tensor", c.inspect.tensors, "Only these (may be repeated)");
  inspect
      .add_option(
          "--processes", c.inspect.processes,
          "Show what this number of processes reads and sends when they restore it, cut as it is")
      ->check(whole(1));
  inspect.add_option("--processes-per-host", c.inspect.processes_per_host)
      ->check(whole(1))
      ->needs("--processes");

  CLI::App& verify = add_command(
      app, "verify", "Read and check every byte; exit status 1: damaged, 3: could not tell",
      "shardwise verify runs/checkpoints", c, c.verify, run_verify);
  verify.add_option("path", c.verify.path, "A checkpoint, or a directory of steps (all)")
      ->check(local_path())
      ->required();
}

void add_diff(CLI::App& app, Commands& c) {
  CLI::App& diff = add_command(
      app, "diff", "Compare the tensors of two checkpoints or files; exit status 1: they differ",
      "shardwise diff runs/a/step-00000400 runs/b/step-00000400\n"
      "  shardwise diff runs/a model.safetensors --rtol 1e-5",
      c, c.diff, run_diff);
  diff.add_option("first", c.diff.first, kTensors)->check(local_path())->required();
  diff.add_option("second", c.diff.second, kTensors)->check(local_path())->required();
  diff.add_option(
      "--atol", c.diff.atol,
      "Elements are equal if |first - second| <= atol + rtol * |second|, or if both are "
      "NaN (default: if their bits are equal)");
  diff.add_option("--rtol", c.diff.rtol);
  add_memory_budget(diff, c.diff.memory_budget_bytes);
  add_threads(diff, c.diff.threads);
}

void add_elements(CLI::App& app, Commands& c) {
  CLI::App& cat = add_command(app, "cat", "Show the elements of a tensor, or write them as .npy",
                              "shardwise cat runs/checkpoints w1 --box '0:4,:,3'\n"
                              "  shardwise cat model.safetensors lm_head.weight --npy head.npy",
                              c, c.cat, run_cat);
  cat.add_option("path", c.cat.path, kTensors)->check(local_path())->required();
  cat.add_option("tensor", c.cat.tensor, "Its name")->required();
  cat.add_option("--box", c.cat.box,
                 "Which elements, as Python writes it: 0:4,:,3 (default: all); an index takes its "
                 "dim out");
  cat.add_flag("--all", c.cat.all,
               "Show all elements (default: of more than 1000, the first and last three of each "
               "long dim)");
  cat.add_option("--npy", c.cat.npy, "Write them to this file instead; -: to stdout");

  CLI::App& stats =
      add_command(app, "stats", "Show range, mean, deviation, NaN, infinities and zeros of tensors",
                  "shardwise stats runs/checkpoints\n"
                  "  shardwise stats model.safetensors '*norm*' --histogram 20",
                  c, c.stats, run_stats);
  stats.add_option("path", c.stats.path, kTensors)->check(local_path())->required();
  stats.add_option("pattern", c.stats.patterns,
                   "Names of tensors; * and ? stand for any characters (default: all)");
  stats.add_option("--histogram", c.stats.bars, "Also count the elements in this number of bars")
      ->check(whole(1, 10'000));
  add_threads(stats, c.stats.threads);
}

/// What reshard and import have in common beside source, target and mesh.
void add_step_options(CLI::App& command, ReshardOptions& options) {
  command.add_option("--devices", options.devices, "Device ids in mesh order (default 0,1,2,..)");
  command.add_option("--spec", options.rules,
                     "Rules NAME-PATTERN=SPEC, separated by \";\", or @FILE with one per line; "
                     "first match counts; other tensors keep their spec");
  add_edits(command, options.edits);
  command.add_option("--codec", options.codec, "auto, zstd or none")->capture_default_str();
  command
      .add_option("--writers", options.writers,
                  "Shard files of each process. The same command after a kill keeps those that are "
                  "whole: with 1 it begins anew")
      ->check(whole(1, 99'999))
      ->capture_default_str();
  command
      .add_option("--processes-per-file", options.processes_per_file,
                  "Under mpirun: of this number of neighbouring processes, the first writes the "
                  "shard files of all")
      ->check(whole(1))
      ->capture_default_str();
  command.add_flag("--replace", options.replace,
                   "Where the target holds the step: write a new generation of it");
  add_memory_budget(command, options.memory_budget_bytes);
  add_threads(command, options.threads);
}

void add_reshard(CLI::App& app, Commands& c) {
  CLI::App& reshard = add_command(
      app, "reshard",
      "Write a checkpoint again, cut over another mesh; under mpirun the processes divide the work",
      "shardwise reshard runs/checkpoints converted --mesh data=2,model=3 --spec 'w1=-,model;*=-'\n"
      "  shardwise reshard runs/checkpoints weights --mesh model=4 --select 'model.*' --rename "
      "'model.*=*' --cast '*=bf16'",
      c, c.reshard, run_reshard);
  reshard.add_option("source", c.reshard.source, kCheckpoint)->check(local_path())->required();
  reshard.add_option("target", c.reshard.target, "Directory that gets the step")
      ->check(local_path())
      ->required();
  reshard.add_option("--mesh", c.reshard.mesh, "Mesh: data=2,model=3")->required();
  add_step_options(reshard, c.reshard);
  CLI::Option* const dry_run = reshard.add_flag(
      "--dry-run", c.reshard.dry_run,
      "Write nothing; say what is read, how often chunks are decoded, memory, files, room and, "
      "after "
      "a probe of a second, time. Exit status 1: the disk may have too little room");
  reshard
      .add_flag("--verify", c.reshard.verify,
                "Then compare every tensor of the target with the source; exit status 3 if one "
                "differs")
      ->excludes(dry_run);
}

void add_conversions(CLI::App& app, Commands& c) {
  CLI::App& imported = add_command(
      app, "import", "Write the tensors of safetensors files as a checkpoint, cut over a mesh",
      "shardwise import llama/ runs/checkpoints --step 0 --mesh model=4 --spec "
      "'*norm*=-;*=model,-'",
      c, c.imported, run_import);
  imported
      .add_option("source", c.imported.source,
                  "A .safetensors file, an .index.json, or a folder with one")
      ->check(local_path())
      ->required();
  imported.add_option("root", c.imported.target, "Directory that gets the step")
      ->check(local_path())
      ->required();
  imported.add_option("--step", c.imported.step, "Number of the step")->required()->check(whole(0));
  imported.add_option("--mesh", c.imported.mesh, "Mesh: data=2,model=3")->capture_default_str();
  add_step_options(imported, c.imported);

  CLI::App& exported = add_command(
      app, "export", "Write the tensors of a checkpoint as safetensors files",
      "shardwise export runs/checkpoints/step-00000400 model.safetensors --format safetensors\n"
      "  shardwise export runs/checkpoints model/ --format safetensors --max-shard 5GB\n"
      "  shardwise export runs/checkpoints model/ --select 'model.*' --rename 'model.*=*' --cast "
      "'*=bf16'",
      c, c.exported, run_export);
  exported.add_option("step", c.exported.source, kCheckpoint)->check(local_path())->required();
  exported.add_option("target", c.exported.target, "NAME.safetensors, or a folder")
      ->check(local_path())
      ->required();
  exported.add_option("--format", c.exported.format, "safetensors")->capture_default_str();
  add_size(exported, "--max-shard", c.exported.max_shard_bytes, {1, std::size_t{1} << 50},
           "Most bytes of tensors in a file, as 5GB; else all are in one");
  add_edits(exported, c.exported.edits);
  exported.add_flag("--replace", c.exported.replace,
                    "Where the target exists: replace it, if it holds nothing but safetensors");
  add_memory_budget(exported, c.exported.memory_budget_bytes);
  add_threads(exported, c.exported.threads);
}

void add_batches_order(CLI::App& batches, BatchesOptions& options) {
  batches.add_option("--order", options.order, "shuffled or sequential")->capture_default_str();
  batches.add_option("--seed", options.seed, "Of the order, and of what is drawn at random")
      ->capture_default_str();
  batches.add_option("--epochs", options.epochs, "Passes over the source")
      ->check(whole(1))
      ->capture_default_str();
  batches.add_option("--last", options.last, "Rows that fill no batch: drop, pad or wrap")
      ->capture_default_str();
  batches.add_option("--bad", options.bad, "Records that cannot be read: fail, substitute or mask")
      ->capture_default_str();
  batches.add_option("--from", options.from, "First batch to show")->check(whole(0));
  batches.add_option("--count", options.count, "How many to show (default: all)")->check(whole(1));
  batches
      .add_option(
          "--state", options.state,
          "A loader's state as JSON, or @FILE: show the rest of its run, from the batch and with "
          "the seed that it names")
      ->excludes("--from")
      ->excludes("--seed");
  batches.add_option("--drill", options.drill,
                     "Records that go wrong, for a rehearsal: corrupt:17,slow:20; also io, "
                     "exception, kill");
  batches.add_option("--timeline", options.timeline,
                     "File that gets what happened when, for ui.perfetto.dev; says what more "
                     "threads would bring");
}

void add_batches(CLI::App& app, Commands& c) {
  CLI::App& batches = add_command(
      app, "batches", "Show the minibatches of a data set, and how fast they come",
      "shardwise batches 'idx:images.gz?field=image' 'idx:labels.gz?field=label' --batch 256 \\\n"
      "    --mesh data=4,model=2 --spec image=data,model,- --spec label=data --count 3 --digest\n"
      "  shardwise batches 'tokens:train.bin?dtype=u16&window=1025' --batch 64 --mesh data=8\n"
      "  shardwise batches jsonl:web.jsonl jsonl:books.jsonl --mix 3:1 --pack 1024 --batch 8",
      c, c.batches, run_batches);
  batches
      .add_option("source", c.batches.sources,
                  "FORMAT:PATH?OPTION=VALUE&..; several are put side by side, or mixed by --mix")
      ->required();
  batches.add_option("--batch", c.batches.batch, "Rows of the global batch")
      ->required()
      ->check(whole(1));
  batches.add_option("--mesh", c.batches.mesh, "Mesh: data=4,model=2")->capture_default_str();
  batches.add_option("--spec", c.batches.specs,
                     "Of all fields, data,-; or FIELD=SPEC, repeated (default: the batch is cut "
                     "over the first axis)");
  batches.add_option("--filter", c.batches.filter,
                     "Records to keep: 'label==3 && length(text)>=16'");
  batches.add_option("--mix", c.batches.mix, "Weights of the sources: 3:1");
  batches.add_option("--pack", c.batches.pack, "Put documents side by side in rows of this length")
      ->check(whole(1));
  batches.add_option("--pack-field", c.batches.pack_field, "Which field the documents are");
  add_batches_order(batches, c.batches);
  batches.add_option("--threads", c.batches.threads, "That read")
      ->check(whole(1, 1024))
      ->capture_default_str();
  batches.add_option("--prefetch", c.batches.prefetch, "Batches held ready")
      ->check(whole(1, 1024))
      ->capture_default_str();
  batches.add_flag("--digest", c.batches.digest,
                   "Of each batch: the same for every mesh, thread count and resume");
}

void add_bench_options(CLI::App& command, int& repeat, int& threads) {
  command.add_option("--repeat", repeat, "Rounds that are measured, after what warms up")
      ->check(whole(1, 1000))
      ->capture_default_str();
  add_threads(command, threads);
}

void add_bench_save(CLI::App& bench, Commands& c) {
  CLI::App& save = add_command(
      bench, "save", "Durable saves, beside raw writes of the same bytes",
      "shardwise bench save /mnt/fast --tensors 64 --shape 2048,4096 --dtype f32 --codec zstd\n"
      "  shardwise bench save /mnt/fast --codec none --keep-last 1\n"
      "  shardwise bench save runs/bench --data index --keep\n"
      "It writes into a fresh directory inside DIR and removes it; it needs room for the tensors "
      "on\n"
      "the disk, and twice in memory.",
      c, c.bench_save, run_bench_save);
  save.add_option("dir", c.bench_save.directory, "Directory on the file system; may be new")
      ->check(local_path())
      ->required();
  save.add_option("--tensors", c.bench_save.tensors, "How many")
      ->check(whole(1, 100'000))
      ->capture_default_str();
  save.add_option("--shape", c.bench_save.shape, "Extents of each")->capture_default_str();
  save.add_option("--dtype", c.bench_save.dtype, "Element type")->capture_default_str();
  save.add_option("--mesh", c.bench_save.mesh, "Mesh that they are on")->capture_default_str();
  save.add_option("--spec", c.bench_save.spec, "How they are cut over it")->capture_default_str();
  save.add_option("--codec", c.bench_save.codec, "auto, zstd or none")->capture_default_str();
  save.add_option("--data", c.bench_save.data,
                  "gaussian; index: each element is its global row-major index modulo 2^20; zeros")
      ->capture_default_str();
  save.add_flag("--async", c.bench_save.async, "Save in the background");
  CLI::Option* keep_last = save.add_option(
      "--keep-last", c.bench_save.keep_last,
      "As a job that keeps that many: each save removes an older one; tells both times");
  keep_last->check(whole(1, 1000));
  save.add_flag("--keep", c.bench_save.keep,
                "Leave the checkpoint: DIR becomes its root, and must hold no steps")
      ->excludes(keep_last);
  add_memory_budget(save, c.bench_save.memory_budget_bytes);
  add_bench_options(save, c.bench_save.repeat, c.bench_save.threads);
}

void add_bench_restore(CLI::App& bench, Commands& c) {
  CLI::App& restore = add_command(
      bench, "restore", "Restores, beside raw reads of the same files; exit status 1: other values",
      "shardwise bench restore runs/bench --mesh data=2,model=4 --cold", c, c.bench_restore,
      run_bench_restore);
  restore.add_option("dir", c.bench_restore.directory, kCheckpoint)->required();
  restore.add_option("--mesh", c.bench_restore.mesh, "Mesh to restore onto (default: as saved)");
  restore.add_option("--spec", c.bench_restore.spec, "Spec of all tensors (default: as saved)");
  restore.add_flag("--cold", c.bench_restore.cold,
                   "Drop the files from the page cache before each measurement");
  restore.add_flag("--fresh-memory", c.bench_restore.fresh_memory,
                   "Restore into memory that is new to the process each time, as a job does that "
                   "starts, not into that of the round before");
  add_bench_options(restore, c.bench_restore.repeat, c.bench_restore.threads);
}

void declare(CLI::App& app, Commands& c) {
  app.set_version_flag("--version", std::string(SHARDWISE_VERSION));
  app.require_subcommand(0, 1);  // a missing one is reported after words that are no command
  add_shards(app, c);
  add_explain(app, c);
  add_looks(app, c);
  add_diff(app, c);
  add_elements(app, c);
  add_reshard(app, c);
  add_conversions(app, c);
  add_batches(app, c);
  CLI::App& bench =
      *app.add_subcommand("bench", "Measure how fast checkpoints are on a file system");
  bench.require_subcommand(0, 1);
  bench.footer("Example:\n  shardwise bench save /mnt/fast --codec zstd");
  add_bench_save(bench, c);
  add_bench_restore(bench, c);
  // To be listed and suggested; it is recognised before the others are parsed.
  app.add_subcommand(std::string(kHelp), "Show the options of a command: shardwise help reshard");
}

/// The commands that the words name, outermost first: bench, save.
std::vector<const CLI::App*> path_of(const CLI::App& app) {
  std::vector<const CLI::App*> path{&app};
  const auto is_named = [](const CLI::App* command) { return !command->get_name().empty(); };
  while (true) {
    const std::vector<CLI::App*> below = path.back()->get_subcommands();
    const auto next = std::find_if(below.begin(), below.end(), is_named);
    if (next == below.end()) return path;
    path.push_back(*next);
  }
}

std::string name_of(std::span<const CLI::App* const> path) {
  std::string name;
  for (const CLI::App* command : path.subspan(1)) {
    name += (name.empty() ? "" : " ") + command->get_name();
  }
  return name;
}

std::vector<std::string> commands_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) {
    if (!command->get_name().empty()) names.push_back(command->get_name());
  }
  return names;
}

std::vector<std::string> options_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options({})) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  for (const CLI::App* group : app.get_subcommands({})) {
    if (!group->get_name().empty()) continue;
    for (std::string& name : options_of(*group)) names.push_back(std::move(name));
  }
  return names;
}

/// A message that begins with the command, if there is one.
[[noreturn]] void refuse(const std::string& command, const std::string& what) {
  throw BadUsage(command.empty() ? what : command + ": " + what);
}

[[noreturn]] void refuse_with_help(const std::string& command, const std::string& what) {
  refuse(command, fmt::format("{}; shardwise help{} shows more", what,
                              command.empty() ? "" : " " + command));
}

[[noreturn]] void ask_for_command(std::span<const CLI::App* const> path) {
  refuse(name_of(path),
         fmt::format("a command is needed: {}", fmt::join(commands_of(*path.back()), ", ")));
}

/// Throws for the first word of the command line that no command took.
void refuse_unknown(const CLI::App& app, std::span<char* const> words) {
  const std::vector<const CLI::App*> path = path_of(app);
  for (const std::string word : words) {
    const auto at = std::find_if(path.begin(), path.end(), [&word](const CLI::App* command) {
      const std::vector<std::string> left = command->remaining();
      return std::find(left.begin(), left.end(), word) != left.end();
    });
    if (at == path.end()) continue;
    const std::string command = name_of({path.begin(), at + 1});
    const std::vector<std::string> commands = commands_of(**at);
    if (word.size() > 1 && word[0] == '-') {
      const std::string option = word.substr(0, word.find('='));
      const std::string advice = at == path.begin() && path.size() > 1
                                     ? "options stand after the command"
                                     : suggestion(option, options_of(**at));
      refuse(command, fmt::format("unknown option \"{}\"; {}", option, advice));
    }
    if (commands.empty())
      refuse(command, fmt::format("\"{}\" is one argument too many{}", word,
                                  command == "import" ? "; give the folder of several files" : ""));
    refuse(command, fmt::format("unknown command \"{}\"; {}", word, suggestion(word, commands)));
  }
}

/// What `shardwise help bench save` shows. Requires that nothing was parsed.
std::string help_text(const CLI::App& app, std::span<char* const> words) {
  const CLI::App* at = &app;
  std::string before;
  for (const std::string word : words) {
    if (word.starts_with('-')) continue;  // --json, --help
    const std::vector<std::string> known = commands_of(*at);
    if (std::find(known.begin(), known.end(), word) == known.end()) {
      refuse("help", fmt::format("unknown command \"{}\"; {}", word, suggestion(word, known)));
    }
    before += (before.empty() ? "" : " ") + at->get_name();
    at = at->get_subcommand(word);
  }
  return at->help(before);
}

CommandLine show(std::string text) {
  if (!text.ends_with('\n')) text += '\n';
  return {"", [text = std::move(text)] {
            fmt::print("{}", text);
            return 0;
          }};
}

}  // namespace

CommandLine parse_command_line(int argc, char** argv) {
  CLI::App app{"Sharded tensors: what each device holds, and checkpoints that any mesh can read",
               "shardwise"};
  const auto commands = std::make_shared<Commands>();
  declare(app, *commands);
  app.footer("Exit status: 0 done, 1 the answer is no, 2 bad usage, 3 failure");
  const std::span<char* const> words(argv + 1, argv + std::max(argc, 1));
  if (!words.empty() && words[0] == kHelp) return show(help_text(app, words.subspan(1)));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const std::vector<const CLI::App*> path = path_of(app);
    const bool shows = error.get_exit_code() == 0;  // --help, --version
    if (!shows || path.size() == 1) refuse_unknown(app, words);
    if (!shows) refuse_with_help(name_of(path), error.what());
    return show(dynamic_cast<const CLI::CallForVersion*>(&error) ? error.what() : app.help());
  }
  const std::vector<const CLI::App*> path = path_of(app);
  if (!commands->run) ask_for_command(path);
  return {name_of(path), [commands] { return commands->run(); }};
}

}  // namespace shardwise::tools
