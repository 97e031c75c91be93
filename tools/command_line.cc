#include "command_line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "completion.h"
#include "declaration.h"
#include "other_words.h"
#include "output.h"
#include "parse.h"
#include "shardwise/runtime/spmd/plans.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/text.h"

namespace shardwise::tools {
namespace {

constexpr std::string_view kHelp = "help", kCompletion = "completion";

/// What to do if the target is there.
void add_existing(CLI::App& command, Existing& existing, const char* replace, const char* skip) {
  CLI::Option* const replaces = command.add_flag_callback(
      "--replace", [&existing] { existing = Existing::replace; }, replace);
  command
      .add_flag_callback(
          "--skip-existing", [&existing] { existing = Existing::skip; }, skip)
      ->excludes(replaces);
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

void add_plan(CLI::App& app, Commands& c) {
  CLI::App& plan = add_command(
      app, "plan",
      "Plan a program on a mesh without running it: memory, bytes on the wire, time; exit status "
      "1: it does not fit",
      "shardwise plan step.swp --mesh data=8,model=8 --device h100-80gb\n"
      "  shardwise plan step.swp --mesh data=8 --memory 80GB --mark '*.w1=-,data' --mark '*=-'\n"
      "  shardwise plan step.swp --devices 64 --device h100-80gb --search",
      c, c.plan, run_plan);
  plan.add_option("program", c.plan.program, "A program file, as save_program() writes it")
      ->check(local_path())
      ->required();
  plan.add_option("--mesh", c.plan.mesh, "Mesh: data=8,model=8");
  plan.add_option(
          "--devices", c.plan.devices,
          "In place of a mesh: compare all meshes of this number of devices, up to 4096, "
          "with the axes that marks name; with --search each with the marks that it chooses")
      ->check(whole(1, kMostMeshDevices));
  plan.add_option("--mark", c.plan.marks,
                  "Mark inputs, and what replaces them, otherwise than the file (may be repeated); "
                  "the first pattern that matches counts")
      ->type_name("NAME-PATTERN=SPEC")
      ->allow_extra_args(false);
  std::vector<std::string> ids;
  for (const Machine& machine : machines()) ids.push_back(machine.id);
  plan.add_option("--device", c.plan.device,
                  fmt::format("Machine whose memory and modelled times are asked for: {}",
                              fmt::join(ids, ", ")));
  add_size(plan, "--memory", c.plan.memory_bytes, {1, std::size_t{1} << 60},
           "Memory of each device, 80GiB, instead of the machine's");
  add_rate(plan, "--save-rate", c.plan.save_bytes_per_second,
           "Bytes a second that checkpoints are written with, 2GB/s: how long a save takes");
  plan.add_option("--why", c.plan.why,
                  "Say why a tensor is cut as it is: an input's name, or an operation as %98")
      ->type_name("NAME");
  plan.add_option("--why-not", c.plan.why_not,
                  "Say what stands against another cut of a tensor, what it would cost, and which "
                  "other marks would bring it")
      ->type_name("NAME=SPEC");
  plan.add_option("--attention", c.plan.attention,
                  "fused: in a kernel, without memory for its scores; written: with them")
      ->check(CLI::IsMember({"fused", "written"}))
      ->capture_default_str();
  plan.add_option("--html", c.plan.html,
                  "Also write the plan as a page for a browser to this file: memory over the step, "
                  "collectives, the inputs with their tiles, tables")
      ->type_name("FILE");
  plan.add_flag(
      "--search", c.plan.search,
      "Choose the marks of parameters, optimizer state and data: the fastest, by modelled "
      "times, that fits; needs --device. Takes up to a minute for a large program, on each mesh");
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
  add_existing(command, options.existing,
               "Where the target holds the step: write a new generation of it",
               "Where the target holds the step: write nothing");
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
  reshard
      .add_option("target", c.reshard.words,
                  "Directory that gets the step; the source's step may stand before it: run 20 out")
      ->check(local_path())
      ->required();
  add_step(reshard, c.reshard.step, false);
  reshard.add_option("--mesh", c.reshard.mesh, "Mesh: data=2,model=3")->required();
  add_step_options(reshard, c.reshard);
  CLI::Option* const dry_run = reshard.add_flag(
      "--dry-run", c.reshard.dry_run,
      "Write nothing; say what is read, how often chunks are decoded, memory, files and "
      "room. Exit status 1: the disk may have too little room");
  reshard
      .add_flag("--verify", c.reshard.verify,
                "Then compare every tensor of the target with the source; exit status 3 if one "
                "differs")
      ->excludes(dry_run);
}

void add_conversions(CLI::App& app, Commands& c) {
  CLI::App& imported =
      add_command(app, "import",
                  "Write the tensors of safetensors, HDF5 or npz as a checkpoint, cut over a mesh",
                  "shardwise import llama/ runs/checkpoints --step 0 --mesh model=4 --spec "
                  "'*norm*=-;*=model,-'",
                  c, c.imported, run_import);
  imported
      .add_option(
          "source", c.imported.source,
          "A file of safetensors, HDF5 or npz, an .index.json, a folder with one of these, or a "
          "checkpoint of DCP or Orbax, which the Python package reads")
      ->check(local_path())
      ->required();
  imported.add_option("root", c.imported.target, "Directory that gets the step")
      ->check(local_path())
      ->required();
  imported.add_option("--step", c.imported.step, "Number of the step")->required()->check(whole(0));
  imported.add_option("--mesh", c.imported.mesh, "Mesh: data=2,model=3")->capture_default_str();
  add_step_options(imported, c.imported);

  CLI::App& exported = add_command(
      app, "export",
      "Write the tensors of a checkpoint as safetensors, npz or HDF5, or in the format of DCP or "
      "Orbax",
      "shardwise export runs/checkpoints 400 model.safetensors\n"
      "  shardwise export runs/checkpoints model/ --max-shard 5GB\n"
      "  shardwise export runs/checkpoints arrays.npz\n"
      "  shardwise export runs/checkpoints distributed/ --format dcp\n"
      "  shardwise export runs/checkpoints model/ --strip-prefix model. --config-from gpt2/ "
      "--cast '*=bf16'",
      c, c.exported, run_export);
  exported.add_option("source", c.exported.source, kCheckpoint)->check(local_path())->required();
  exported
      .add_option("target", c.exported.words,
                  "NAME.safetensors, NAME.npz, NAME.h5, or a folder; the step may stand before it: "
                  "run 20 w.npz")
      ->check(local_path())
      ->required();
  add_step(exported, c.exported.step, false);
  exported.add_option("--format", c.exported.format,
                      "safetensors, npz, hdf5, dcp or orbax (default: by the ending of target; of "
                      "a folder safetensors). The Python package writes dcp and orbax");
  exported
      .add_option("--config-from", c.exported.config_from,
                  "Folder of Hugging Face: its config and tokenizer files are copied into target, "
                  "so that from_pretrained opens it; tied weights are left out as its config says")
      ->check(local_path());
  add_size(exported, "--max-shard", c.exported.max_shard_bytes, {1, std::size_t{1} << 50},
           "Most bytes of tensors in a file, as 5GB; else all are in one");
  add_edits(exported, c.exported.edits);
  add_existing(exported, c.exported.existing,
               "Where the target exists: replace it, if it holds nothing but what an export writes",
               "Where the target exists: write nothing");
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
  batches.add_option("--timeline", options.timeline,
                     "File that gets what happened when, for ui.perfetto.dev");
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
                  "[FORMAT:]PATH?OPTION=VALUE&..; several are put side by side, or mixed by --mix")
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
  batches.add_option("--mix", c.batches.mix, "Weights of the sources: 3:1, 0.7:0.3");
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
  add_step(restore, c.bench_restore.step, true);
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
  add_plan(app, c);
  declare_looks(app, c);
  declare_removals(app, c);
  add_reshard(app, c);
  add_conversions(app, c);
  add_batches(app, c);
  CLI::App& bench =
      *app.add_subcommand("bench", "Measure how fast checkpoints are on a file system");
  bench.require_subcommand(0, 1);
  bench.footer("Example:\n  shardwise bench save /mnt/fast --codec zstd");
  add_bench_save(bench, c);
  add_bench_restore(bench, c);
  // To be listed and suggested; they are recognised before the others are parsed.
  app.add_subcommand(std::string(kCompletion),
                     "Print what completes these words in bash: . <(shardwise completion bash)");
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

/// A message that begins with the command, if there is one.
[[noreturn]] void refuse(const std::string& command, const std::string& what) {
  throw BadUsage(command.empty() ? what : command + ": " + what);
}

[[noreturn]] void refuse_with_help(const std::string& command, const std::string& what) {
  refuse(command, fmt::format("{}; shardwise help{} shows more", what,
                              command.empty() ? "" : " " + command));
}

/// What CLI11 says of a word that is missing or no number, as other messages say it.
std::string in_plain_words(const std::string& message) {
  constexpr std::string_view kMissing = ": 1 required ", kNoNumber = "Could not convert: ";
  if (const std::size_t at = message.find(kMissing); at != std::string::npos) {
    return message.substr(0, at) + ": needed is a value after it";
  }
  const std::size_t at = message.find(" = ");
  if (!message.starts_with(kNoNumber) || at == std::string::npos) return message;
  return fmt::format("{}: found \"{}\", needed a number",
                     message.substr(kNoNumber.size(), at - kNoNumber.size()),
                     message.substr(at + 3));
}

[[noreturn]] void ask_for_command(std::span<const CLI::App* const> path) {
  refuse(name_of(path),
         fmt::format("a command is needed: {}", fmt::join(commands_of(*path.back()), ", ")));
}

std::string unknown_command(const CLI::App& above, const std::string& word) {
  const bool is_root = above.get_parent() == nullptr;
  const std::string_view advice = is_root ? advice_for_verb(word) : std::string_view();
  return fmt::format("unknown command \"{}\"; {}", word,
                     advice.empty() ? suggestion(word, commands_of(above)) : advice);
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
    const std::vector<std::string> commands = commands_of(**at), options = options_of(**at);
    if (word.size() > 1 && word[0] == '-') {
      const std::string option = word.substr(0, word.find('='));
      const std::string advice =
          at == path.begin() && path.size() > 1
              ? "options stand after the command"
              : advice_for_option(option, options, arguments_of(command, **at));
      refuse(command, fmt::format("unknown option \"{}\"; {}", option, advice));
    }
    if (commands.empty())
      refuse(command, fmt::format("\"{}\" is one argument too many{}", word,
                                  command == "import" ? "; give the folder of several files" : ""));
    const bool is_option = std::ranges::find(options, "--" + word) != options.end();
    refuse(command, is_option
                        ? fmt::format("unknown command \"{0}\"; did you mean \"--{0}\"?", word)
                        : unknown_command(**at, word));
  }
}

struct NamedCommand {
  const CLI::App* app;
  std::string words;  ///< that call it: "shardwise bench save"
};

/// The command that the words name, but for options. Throws for one that is none.
NamedCommand named_command(const CLI::App& app, std::span<char* const> words) {
  NamedCommand named{&app, app.get_name()};
  for (const std::string word : words) {
    if (word.starts_with('-')) continue;  // --json, --help
    const std::vector<std::string> known = commands_of(*named.app);
    if (std::find(known.begin(), known.end(), word) == known.end()) {
      refuse(std::string(kHelp), unknown_command(*named.app, word));
    }
    named.app = named.app->get_subcommand(word);
    named.words += " " + word;
  }
  return named;
}

/// Help in lines of at most kWidth columns. Examples are so already.
std::string wrapped_help(std::string_view help) {
  constexpr std::size_t kDescriptions = 30;  // column at which CLI11 begins them
  std::string lines;
  for (const std::string_view line : split(help, '\n')) {
    const bool is_described = line.size() > kDescriptions && line[kDescriptions - 1] == ' ';
    lines += wrapped(line, kWidth, is_described ? kDescriptions : 0) + '\n';
  }
  lines.pop_back();
  return lines;
}

/// What `shardwise help bench save` shows. Requires that nothing was parsed.
std::string help_text(const CLI::App& app, std::span<char* const> words) {
  const NamedCommand named = named_command(app, words);
  const auto is_man = [](std::string_view word) { return word == "--man"; };
  if (std::any_of(words.begin(), words.end(), is_man)) {
    std::string page = named.words;
    std::ranges::replace(page, ' ', '-');
    refuse(std::string(kHelp), fmt::format("unknown option \"--man\"; write man {}", page));
  }
  const std::size_t last = named.words.rfind(' ');
  return wrapped_help(
      named.app->help(last == std::string::npos ? "" : named.words.substr(0, last)));
}

/// What `shardwise completion bash` prints.
std::string completion_text(const CLI::App& app, std::span<char* const> words) {
  if (!words.empty() && std::string_view(words[0]) == "names") return names_after(words.subspan(1));
  for (const std::string word : words) {
    if (word == "bash") return bash_completion(app);
    if (word == "--help" || word == "-h")
      return wrapped_help(app.get_subcommand(std::string(kCompletion))->help(app.get_name()));
    if (!word.starts_with('-')) {
      refuse(std::string(kCompletion), fmt::format("found \"{}\", needed bash", word));
    }
  }
  refuse(std::string(kCompletion), "a shell is needed: bash");
}

CommandLine show(std::string text) {
  if (!text.empty() && !text.ends_with('\n')) text += '\n';
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
  if (!words.empty() && words[0] == kCompletion) {
    return show(completion_text(app, words.subspan(1)));
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const std::vector<const CLI::App*> path = path_of(app);
    const bool shows = error.get_exit_code() == 0;  // --help, --version
    if (!shows || path.size() == 1) refuse_unknown(app, words);
    if (!shows) refuse_with_help(name_of(path), in_plain_words(error.what()));
    return show(dynamic_cast<const CLI::CallForVersion*>(&error) ? error.what()
                                                                 : wrapped_help(app.help()));
  }
  const std::vector<const CLI::App*> path = path_of(app);
  if (!commands->run) ask_for_command(path);
  return {name_of(path), [commands] { return commands->run(); }};
}

}  // namespace shardwise::tools
