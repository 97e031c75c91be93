#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/checkpoint/read_options.h"
#include "shardwise/checkpoint/save.h"
#include "shardwise/shard/mesh.h"
#include "shardwise/shard/partition_spec.h"

namespace shardwise {

/// Which spec a tensor gets, by its name. Text: `w1=-,model; layers/*/bias=model; *=-`, rules
/// separated by ";" or line ends, "#" begins a comment; the last "=" of a rule ends its pattern.
/// The first pattern that matches the whole name counts; "*" stands for any characters, "?" for
/// one.
/// "-" alone fits any rank: all dims whole.
///
/// Immutable.
class SpecRules {
 public:
  SpecRules() = default;

  /// Throws invalid_argument naming the rule at fault.
  static SpecRules parse(std::string_view text);

  /// Nothing where no pattern matches. Throws invalid_argument, naming rule and tensor, where the
  /// rank does not fit.
  std::optional<PartitionSpec> find(std::string_view name, std::size_t rank) const;

  /// Patterns that match none of the names: mostly a slip. Where there are no names, none.
  std::vector<std::string> unmatched(std::span<const std::string_view> names) const;

 private:
  struct Rule {
    std::string pattern, spec;
  };
  std::vector<Rule> rules_;
};

struct ReshardOptions {
  /// memory_budget_bytes is of all, reading included; user_json is ignored: the source's is kept.
  SaveOptions save = {};

  /// threads and file_system serve both; memory_budget_bytes, pin and progress are ignored.
  ReadOptions read = {};
};

/// Writes the checkpoint at `source` again under `target_root`, same step, cut over another mesh;
/// streams, within the memory budget, whatever the tensors' sizes. Tensors that no rule matches
/// keep the spec and policy they were saved with; a rule's spec is cut by ceil blocks. Every
/// mismatch between specs and mesh, and every rule that matches no tensor, is listed in one
/// invalid_argument before any data is read. Throws as CheckpointReader and CheckpointManager do;
/// then nothing new is listed in target_root.
SaveStats reshard_checkpoint(const std::filesystem::path& source,
                             const std::filesystem::path& target_root, const Mesh& mesh,
                             const SpecRules& rules, ReshardOptions options = {});

}  // namespace shardwise
