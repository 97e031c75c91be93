#include "declaration.h"

#include <fmt/format.h>

#include <charconv>
#include <system_error>

#include "output.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/text.h"

namespace shardwise::tools {
namespace {

void add_looks(CLI::App& app, Commands& c) {
  CLI::App& ls = add_command(app, "ls", "List the checkpoints of a directory",
                             "shardwise ls runs/checkpoints", c, c.ls, run_ls);
  ls.add_option("root", c.ls.root,
                "Directory that holds checkpoints, one of them, or a file or folder that import "
                "takes")
      ->check(local_path())
      ->required();
  add_step(ls, c.ls.step, true);

  CLI::App& inspect =
      add_command(app, "inspect", "Show the tensors, objects and user data of a checkpoint",
                  "shardwise inspect runs/checkpoints/step-00000400 'h.0.*'\n"
                  "  shardwise inspect runs/checkpoints 400 --depth 2\n"
                  "  shardwise inspect runs/checkpoints w1 --svg w1.svg",
                  c, c.inspect, run_inspect);
  inspect.add_option("path", c.inspect.path, kTensors)->check(local_path())->required();
  inspect.add_option("pattern", c.inspect.patterns,
                     "Names of tensors; * and ? stand for any characters (default: all)");
  add_step(inspect, c.inspect.step, false);
  inspect.add_option("--tensor", c.inspect.tensors, "Also these (may be repeated)");
  inspect
      .add_option("--depth", c.inspect.depth,
                  "Levels of names to show, as . and / split them (default: all)")
      ->check(whole(1));
  inspect.add_flag("--flat", c.inspect.flat, "Show a list of whole names, with pieces and chunks")
      ->excludes("--depth");
  inspect.add_option("--svg", c.inspect.svg,
                     "Also draw the one tensor to this SVG file: which devices hold which tile");
  inspect
      .add_option(
          "--processes", c.inspect.processes,
          "Show what this number of processes reads and sends when they restore it, cut as it is")
      ->check(whole(1));
  inspect
      .add_option(
          "--processes-per-host", c.inspect.processes_per_host,
          "Also show what is moved if one process of each host reads for this number of them")
      ->check(whole(1))
      ->needs("--processes");

  CLI::App& verify = add_command(
      app, "verify", "Read and check every value; exit status 1: damaged, 3: could not tell",
      "shardwise verify runs/checkpoints\n"
      "  shardwise verify runs/checkpoints/step-00000400 --repair --from /backup/checkpoints",
      c, c.verify, run_verify);
  verify.add_option("path", c.verify.path, "A checkpoint, or a directory of such (all)")
      ->check(local_path())
      ->required();
  add_step(verify, c.verify.step, true);
  CLI::Option* const repair = verify.add_flag(
      "--repair", c.verify.repair,
      "Make damaged chunks and files again, exactly as they were, from other steps, copies and "
      "parity");
  verify
      .add_option(
          "--from", c.verify.from,
          "A copy of the checkpoint, or a directory of steps that has one (may be repeated)")
      ->check(local_path())
      ->needs(repair);
}

void add_parity(CLI::App& app, Commands& c) {
  CLI::App& parity = add_command(
      app, "parity", "Write parity, by which verify --repair needs no copy, and say what it costs",
      "shardwise parity runs/checkpoints/step-00000400 --blocks 4\n"
      "  shardwise parity runs/checkpoints --remove",
      c, c.parity, run_parity);
  parity.add_option("path", c.parity.path, "A checkpoint, or a directory of such (all)")
      ->check(local_path())
      ->required();
  add_step(parity, c.parity.step, true);
  CLI::Option* const blocks =
      parity
          .add_option("--blocks", c.parity.blocks,
                      "How many blocks of 1 MiB of each shard file may be lost or damaged")
          ->check(whole(1, 127))
          ->capture_default_str();
  parity.add_flag("--remove", c.parity.remove, "Remove the parity")->excludes(blocks);
  add_threads(parity, c.parity.threads);
}

void add_diff(CLI::App& app, Commands& c) {
  CLI::App& diff = add_command(
      app, "diff", "Compare the tensors of two checkpoints or files; exit status 1: they differ",
      "shardwise diff runs/a 300 400\n"
      "  shardwise diff runs/a@400 runs/b@400\n"
      "  shardwise diff runs/a model.safetensors --rtol 1e-5",
      c, c.diff, run_diff);
  diff.add_option("first", c.diff.first, kTensors)->check(local_path())->required();
  diff.add_option("second", c.diff.words,
                  "Another one, or two steps of the first: run 20 30; run 20 other 30 is one of "
                  "each")
      ->check(local_path())
      ->required();
  diff.add_option("--step", c.diff.step, "The step of both directories")->type_name("STEP");
  diff.add_option(
      "--atol", c.diff.atol,
      "Elements are equal if |first - second| <= atol + rtol * |second|, or if both are "
      "NaN (default: if their bits are equal)");
  diff.add_option("--rtol", c.diff.rtol, "See --atol");
  add_memory_budget(diff, c.diff.memory_budget_bytes);
  add_threads(diff, c.diff.threads);
}

void add_elements(CLI::App& app, Commands& c) {
  CLI::App& cat =
      add_command(app, "cat", "Show an object, or the elements of a tensor, or write them as .npy",
                  "shardwise cat runs/checkpoints 'w1[0:4, :, 3]'\n"
                  "  shardwise cat model.safetensors lm_head.weight --npy head.npy",
                  c, c.cat, run_cat);
  cat.add_option("path", c.cat.path, kTensors)->check(local_path())->required();
  cat.add_option("tensor", c.cat.words,
                 "Its name, or that of an object; w[0:4, -1] are elements of w, as in numpy");
  add_step(cat, c.cat.step, false);
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
                  "  shardwise stats runs/checkpoints 400 --nan\n"
                  "  shardwise stats model.safetensors '*norm*' --histogram 20",
                  c, c.stats, run_stats);
  stats.add_option("path", c.stats.path, kTensors)->check(local_path())->required();
  stats.add_option("pattern", c.stats.patterns,
                   "Names of tensors; * and ? stand for any characters (default: all)");
  add_step(stats, c.stats.step, false);
  stats.add_flag("--nan", c.stats.nan,
                 "Show only tensors that have NaN or infinities, and where the first one is; exit "
                 "status 1: there are some");
  stats.add_option("--histogram", c.stats.bars, "Also count the elements in this number of bars")
      ->check(whole(1, 10'000));
  add_threads(stats, c.stats.threads);
}

void add_du(CLI::App& app, Commands& c) {
  CLI::App& du = add_command(
      app, "du", "Show what takes the room of a checkpoint, or of each step below a directory",
      "shardwise du runs/checkpoints\n"
      "  shardwise du runs",
      c, c.du, run_du);
  du.add_option("path", c.du.path,
                "A checkpoint, a directory of steps, or a directory with such below it")
      ->check(local_path())
      ->required();
  add_step(du, c.du.step, true);
  du.set_help_flag("--help", "Print this help message and exit");
  du.add_flag_callback(
      "-h,--human-readable", [] {}, "Sizes with units, as they are shown anyway");
}

void add_tiers(CLI::App& app, Commands& c) {
  CLI::App& tiers = add_command(
      app, "tiers",
      "Show the steps of a fast tier, or put one together; exit status 1: none is whole, or "
      "--verify found damage",
      "shardwise tiers /dev/shm/job --durable /shared/job\n"
      "  shardwise tiers host0/job host1/job --verify\n"
      "  shardwise tiers host0/job host1/job --durable /shared/job --to rescued --step 400",
      c, c.tiers, run_tiers);
  tiers
      .add_option("fast", c.tiers.roots,
                  "Fast root of a TieredManager; those of several hosts, if they were copied or "
                  "are mounted")
      ->check(local_path())
      ->required();
  tiers
      .add_option("--durable", c.tiers.durable,
                  "The durable root: a chunk that is bad in the fast roots may be there")
      ->check(local_path());
  CLI::Option* const verify = tiers.add_flag(
      "--verify", c.tiers.verify, "Read every value; say which chunks have no good copy");
  CLI::Option* const to =
      tiers
          .add_option("--to", c.tiers.to,
                      "Directory that gets the newest whole step as an ordinary checkpoint, every "
                      "byte of which is checked")
          ->check(local_path())
          ->excludes(verify);
  tiers.add_option("--step", c.tiers.step, "Number of the step instead of the newest one")
      ->check(whole(0))
      ->needs(to);
}

}  // namespace

std::string wrapped_example(std::string_view lines) {
  std::string all;
  for (const std::string_view line : split(lines, '\n')) {
    std::string text(line);
    for (std::size_t begin = 0; text.size() - begin > kWidth;) {
      const std::size_t at = text.rfind(" -", begin + kWidth - 2);
      if (at == std::string::npos || at <= begin + 2) break;
      text.replace(at, 1, " \\\n      ");
      begin = at + 3;
    }
    all += (all.empty() ? "" : "\n") + text;
  }
  return all;
}

void add_step(CLI::App& command, std::string& step, bool as_word) {
  CLI::Option& option = *command.add_option(
      "--step", step, "Which step of the directory: its number, latest, or a name that pins it");
  option.type_name("STEP");
  if (as_word) command.add_option("step", step, "As --step")->excludes(&option);
}

void declare_looks(CLI::App& app, Commands& c) {
  add_looks(app, c);
  add_parity(app, c);
  add_diff(app, c);
  add_elements(app, c);
  add_du(app, c);
  add_tiers(app, c);
}

void declare_removals(CLI::App& app, Commands& c) {
  CLI::App& rm = add_command(app, "rm", "Remove steps; exit status 1: some were left",
                             "shardwise rm runs/checkpoints 100 200\n"
                             "  shardwise rm runs/checkpoints/step-00000100",
                             c, c.rm, run_rm);
  rm.add_option("root", c.rm.root, "Directory that holds the steps, or one of them")
      ->check(local_path())
      ->required();
  rm.add_option("step", c.rm.words, "Their numbers, or their directories")->check(local_path());
  rm.add_flag(
      "--force", c.rm.force,
      "Also those that somebody reads, and the last valid one (both are left otherwise); not "
      "those that are pinned");

  CLI::App& pin =
      add_command(app, "pin", "Give a step a name, by which it stays: retention and rm leave it",
                  "shardwise pin runs/checkpoints 100 before-lr-drop", c, c.pin, run_pin);
  pin.add_option("root", c.pin.root, "Directory that holds the step, or run@100 with it")
      ->check(local_path())
      ->required();
  pin.add_option("name", c.pin.words,
                 "The step's number, and the name: letters, digits, '.', '-', '_'; a name that "
                 "another step has moves")
      ->required();

  CLI::App& unpin =
      add_command(app, "unpin", "Take names of steps away",
                  "shardwise unpin runs/checkpoints before-lr-drop", c, c.unpin, run_unpin);
  unpin.add_option("root", c.unpin.root, "Directory that holds the steps")
      ->check(local_path())
      ->required();
  unpin.add_option("name", c.unpin.names, "The names (ls shows them)")->required();

  CLI::App& gc = add_command(
      app, "gc", "Remove what killed saves, reshards, imports and exports left in a directory",
      "shardwise gc runs/checkpoints\n"
      "  shardwise gc runs/checkpoints --dead-host node17",
      c, c.gc, run_gc);
  gc.add_option("root", c.gc.root, "Directory of steps, or of what was exported or resharded")
      ->check(local_path())
      ->required();
  gc.add_option("--dead-host", c.gc.dead_hosts,
                "A machine or container that is gone for good: its processes hold nothing any more "
                "(may be repeated)");
}

}  // namespace shardwise::tools
