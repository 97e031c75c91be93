#include "other_verbs.h"

#include <algorithm>
#include <cctype>
#include <string>
#include <vector>

namespace shardwise::tools {
namespace {

struct Verbs {
  std::vector<std::string_view> words;
  std::string_view advice;
};

// Verbs of git, coreutils, fsck, package managers and the checkpoint tools of other libraries.
const std::vector<Verbs>& other_verbs() {
  static const std::vector<Verbs> kVerbs = {
      {{"show", "info", "describe", "view", "summary", "summarize", "tree", "metadata", "tensors",
        "keys", "names", "open", "print", "meta", "look"},
       "`shardwise inspect CHECKPOINT` shows what it holds"},
      {{"log", "list", "history", "steps", "status", "dir", "ll", "find", "versions", "latest",
        "best"},
       "`shardwise ls ROOT` lists the steps with their times, metrics and pins"},
      {{"dump", "head", "tail", "get", "read", "values", "less", "more", "slice", "load"},
       "`shardwise cat CHECKPOINT TENSOR` shows elements, 'w[0:3]' some of them"},
      {{"cp", "copy", "clone", "backup"},
       "`cp -r` copies a checkpoint, `shardwise reshard CHECKPOINT ROOT --mesh MESH` writes it "
       "again"},
      {{"mv", "move"}, "`mv` moves a whole root; steps refer to nothing outside it"},
      {{"rename", "cast", "edit", "split", "merge", "join", "quantize", "transpose", "rewrite",
        "repartition", "redistribute", "consolidate", "unshard", "shard"},
       "`shardwise reshard CHECKPOINT ROOT --mesh MESH` writes it again; --rename, --cast, --split "
       "and --join change tensors on the way"},
      {{"tag", "label", "protect", "keep", "mark", "lock", "bookmark"},
       "`shardwise pin ROOT STEP NAME` gives a step a name, by which it stays"},
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

}  // namespace

std::string_view advice_for_verb(std::string_view verb) {
  std::string small(verb);
  std::ranges::transform(small, small.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (const Verbs& verbs : other_verbs()) {
    if (std::ranges::find(verbs.words, small) != verbs.words.end()) return verbs.advice;
  }
  return {};
}

}  // namespace shardwise::tools
