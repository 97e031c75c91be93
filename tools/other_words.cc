#include "other_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <string>
#include <utility>
#include <vector>

#include "parse.h"

namespace shardwise::tools {
namespace {

struct Verbs {
  std::vector<std::string_view> words;
  std::string_view advice;
};

// Verbs of git, coreutils, fsck, package managers and the checkpoint tools of other libraries.
const std::vector<Verbs>& other_words() {
  static const std::vector<Verbs> kVerbs = {
      {{"show", "info", "describe", "view", "summary", "summarize", "tree", "metadata", "tensors",
        "keys", "names", "open", "print", "meta", "look"},
       "`shardwise inspect CHECKPOINT` shows its contents"},
      {{"log", "list", "history", "steps", "status", "dir", "ll", "find", "versions", "latest",
        "best"},
       "`shardwise ls ROOT` lists the steps with their times, metrics and pins"},
      {{"dump", "head", "tail", "get", "read", "values", "less", "more", "slice", "load"},
       "`shardwise cat CHECKPOINT TENSOR` shows elements, 'w[0:3]' some of them"},
      {{"copy", "clone", "backup", "upload", "download"},
       "`shardwise cp CHECKPOINT ROOT` copies a step, into a bucket or out of one, too"},
      {{"mv", "move"}, "`mv` moves a whole root; steps refer to nothing outside it"},
      {{"rename", "cast", "edit", "split", "merge", "join", "quantize", "transpose", "rewrite",
        "repartition", "redistribute", "consolidate", "unshard", "shard"},
       "`shardwise reshard CHECKPOINT ROOT --mesh MESH` writes it again; --rename, --cast, --split "
       "and --join change tensors on the way"},
      {{"tag", "label", "protect", "keep", "mark", "lock", "bookmark"},
       "`shardwise pin ROOT STEP NAME` gives a step a name that keeps it"},
      {{"untag", "unlabel", "unprotect", "unlock"}, "`shardwise unpin ROOT NAME` takes it away"},
      {{"fsck", "check", "validate", "test", "checksum", "hash", "sha256", "sha256sum", "md5",
        "md5sum", "scrub", "audit", "doctor", "integrity"},
       "`shardwise verify CHECKPOINT` reads and checks every value by its hash"},
      {{"repair", "fix", "recover", "heal", "restore"},
       "`shardwise verify CHECKPOINT --repair` makes damaged chunks again; a program restores by "
       "CheckpointManager"},
      {{"convert", "save", "load-from", "ingest", "to", "from", "write"},
       "`shardwise import SOURCE ROOT --step N` makes a checkpoint of other formats, `shardwise "
       "export CHECKPOINT TARGET` writes them"},
      {{"sync", "upload", "download", "push", "pull", "fetch", "flush", "gather"},
       "`shardwise tiers ROOT.. --to ROOT` puts steps of a fast tier together; `rsync -a` copies a "
       "root"},
      {{"prune", "remove", "delete", "del", "rmdir", "unlink", "expire", "purge"},
       "`shardwise rm ROOT STEP..` removes steps, `shardwise gc ROOT` what killed saves left"},
      {{"clean", "cleanup", "vacuum"},
       "`shardwise gc ROOT` removes what killed saves left, `shardwise rm ROOT STEP..` steps"},
      {{"compare", "cmp", "delta"}, "`shardwise diff FIRST SECOND` compares two checkpoints"},
      {{"size", "usage", "df", "space", "count"},
       "`shardwise du CHECKPOINT` shows what takes room"},
      {{"stat", "nan", "histogram", "hist"},
       "`shardwise stats CHECKPOINT` shows range, mean, deviation, NaN and infinities"}};
  return kVerbs;
}

struct Options {
  std::vector<std::string_view> words;
  std::vector<std::string_view> instead;  ///< the first that a command has
};

// Options of the commands of Hugging Face, torch, Orbax, TensorStore, git, tar and coreutils.
const std::vector<Options>& other_options() {
  static const std::vector<Options> kOptions = {
      {{"--dtype", "--type", "--precision", "--to-dtype", "--convert", "--quantize",
        "--torch-dtype", "--bf16", "--fp16", "--half"},
       {"--cast"}},
      {{"--max-shard-size", "--shard-size", "--max-size", "--split-size", "--file-size"},
       {"--max-shard", "--block-bytes"}},
      {{"--include", "--only", "--filter", "--names", "--keys", "--tensors", "--pattern", "--match",
        "--param", "--params", "--item", "--items"},
       {"--select", "--tensor"}},
      {{"--ignore", "--without", "--omit", "--drop", "--except"}, {"--exclude"}},
      {{"--map", "--key-map", "--mapping", "--transform"}, {"--rename"}},
      {{"--prefix", "--remove-prefix"}, {"--strip-prefix"}},
      {{"-j", "--jobs", "--workers", "--num-workers", "--num-threads", "--nproc", "--parallel",
        "--concurrency"},
       {"--threads"}},
      {{"--memory", "--ram", "--max-memory", "--mem", "--buffer-size"}, {"--memory-budget"}},
      {{"--iteration", "--iter", "--version", "--epoch", "--at"}, {"--step"}},
      {{"--to", "--from", "--fmt", "--output-format", "--input-format", "-t"}, {"--format"}},
      {{"-f", "--force", "--overwrite", "-y", "--yes"}, {"--replace"}},
      {{"--no-clobber", "--exist-ok", "--resume"}, {"--skip-existing"}},
      {{"-n", "--dry", "--simulate", "--no-act"}, {"--dry-run", "--skip-existing"}},
      {{"--config", "--tokenizer", "--config-file"}, {"--config-from"}},
      {{"--tolerance", "--tol", "--eps"}, {"--atol"}},
      {{"--sharding", "--partition", "--partition-spec", "--pspec", "--layout"}, {"--spec"}},
      {{"--devices", "--mesh-shape", "--topology", "--parallelism", "--world-size"}, {"--mesh"}},
      {{"--yaml", "--machine-readable", "--porcelain"}, {"--json"}}};
  return kOptions;
}

// Options that are gone, each with its replacement.
constexpr std::pair<std::string_view, std::string_view> kGone[] = {
    {"--drill",
     "to rehearse bad records, damage bytes of a copy of the data; --bad says what to do then"},
    {"--processes-per-file", "\"shardwise reshard --writers\" of one process makes fewer files"}};

// Other tools give a file or folder by them.
constexpr std::string_view kTargets[] = {
    "-o",     "--output",    "--out",   "--output-dir", "--outdir",    "--target", "--dst",
    "--dest", "-i",          "--input", "--src",        "--source",    "--path",   "--root",
    "--dir",  "--directory", "-d",      "--folder",     "--checkpoint"};

}  // namespace

std::string_view advice_for_verb(std::string_view verb) {
  std::string small(verb);
  std::ranges::transform(small, small.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (const Verbs& verbs : other_words()) {
    if (std::ranges::find(verbs.words, small) != verbs.words.end()) return verbs.advice;
  }
  return {};
}

std::string advice_for_option(std::string_view option, const std::vector<std::string>& known,
                              std::string_view usage) {
  for (const auto& [gone, instead] : kGone) {
    if (option == gone) return std::string(instead);
  }
  for (const Options& options : other_options()) {
    if (std::ranges::find(options.words, option) == options.words.end()) continue;
    for (const std::string_view instead : options.instead) {
      if (std::ranges::find(known, instead) == known.end()) continue;
      return fmt::format("did you mean \"{}\"?", instead);
    }
  }
  if (std::ranges::find(kTargets, option) != std::end(kTargets)) {
    return fmt::format("files and folders have no option before them: {}", usage);
  }
  return suggestion(option, known);
}

}  // namespace shardwise::tools
