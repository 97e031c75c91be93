#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/checkpoint/box_reader.h"
#include "shardwise/checkpoint/save.h"
#include "shardwise/reshape/edits.h"
#include "shardwise/runtime/process/process_group.h"
#include "shardwise/shard/error.h"
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
  /// "-" for any rank stays text until a tensor's rank is known.
  struct Rule {
    std::string pattern, spec;

    /// The spec for a tensor of this rank, which it need not fit.
    PartitionSpec spec_of(std::size_t rank) const;
  };

  SpecRules() = default;

  /// Throws invalid_argument naming the rule at fault.
  static SpecRules parse(std::string_view text);

  /// The first rule whose pattern matches; null if none does. Valid as long as this.
  const Rule* match(std::string_view name) const;

  /// That rule's spec; nothing if no pattern matches. Throws invalid_argument, naming rule and
  /// tensor, if the rank does not fit.
  std::optional<PartitionSpec> find(std::string_view name, std::size_t rank) const;

  /// Patterns that match none of the names: usually a typo. Empty if there are no names.
  std::vector<std::string> unmatched(std::span<const std::string_view> names) const;

 private:
  std::vector<Rule> rules_;
};

struct ReshardOptions {
  /// memory_budget_bytes is of all, reading a checkpoint included; the process's other memory
  /// (threads, tables of tensors and chunks) stays below 64 MiB with up to 16 threads and some
  /// thousand tensors. user_json and objects_json are ignored if the source is a checkpoint: its
  /// own are kept, but objects_json, which may speak of names, only if all tensors keep theirs.
  SaveOptions save = {};

  /// Which tensors are written, under which names and as which dtypes.
  TensorEdits edits = {};

  int threads = 0;  ///< that read, and that write; 0: as many as the machine has cores

  /// The processes that do the work together, with the same arguments: each writes the pieces that
  /// its share of the mesh's devices holds, as in a save (ManagerOptions::group), and reads no more
  /// than it needs for that. Processes in excess of the devices have nothing to do.
  ProcessGroup group = {};

  /// Reads and writes all files; null: posix_file_system().
  std::shared_ptr<FileSystem> file_system = nullptr;
};

/// Where a reshard writes: one step of the checkpoints in a root directory.
struct ReshardTarget {
  std::filesystem::path root;
  std::int64_t step = 0;
};

/// Writes the tensors of `source` as a checkpoint, cut over `mesh`; streams, within the memory
/// budget, whatever the tensors' sizes. Rules see the names that the edits give. Tensors that no
/// rule matches keep the spec and policy that the source says they had, and are not cut if it says
/// none; a rule's spec is cut by ceil blocks. Before any data is read, throws one invalid_argument
/// for all edits that do not fit; or one for all mismatches between specs and mesh, and all rules
/// that match no tensor, grouped by fault; and one if the target is inside a checkpoint's
/// directory. Throws as CheckpointManager and the source do; then nothing new is listed in the
/// target.
SaveStats reshard_checkpoint(const BoxReader& source, const ReshardTarget& target, const Mesh& mesh,
                             const SpecRules& rules, ReshardOptions options = {});

/// The same for the checkpoint at `source`: same step (0 if it has no step), user_json and
/// objects_json. Decodes each chunk as seldom as the budget allows. Throws as CheckpointReader
/// does, too.
SaveStats reshard_checkpoint(const std::filesystem::path& source,
                             const std::filesystem::path& target_root, const Mesh& mesh,
                             const SpecRules& rules, ReshardOptions options = {});

/// The work that a reshard of a checkpoint would do.
struct ReshardPlan {
  std::int64_t step = 0;
  bool skipped = false;            ///< Existing::skip, and the step is there: all else is 0
  std::size_t tensors = 0;         ///< that are written
  std::size_t source_tensors = 0;  ///< that there are
  std::size_t logical_bytes = 0;   ///< that are written

  // Reads of the source by one thread; several may read a little more.
  std::int64_t chunks = 0;        ///< that hold something that is wanted
  std::int64_t decodes = 0;       ///< of them: more than `chunks` if some are decoded again
  std::size_t read_bytes = 0;     ///< stored bytes
  std::size_t decoded_bytes = 0;  ///< after decoding
  std::size_t needed_bytes = 0;   ///< of the elements that are wanted

  std::int64_t files = 0;           ///< shard files that are written
  std::int64_t file_chunks = 0;     ///< in them
  std::size_t most_file_bytes = 0;  ///< an upper bound: if nothing shrinks
};

/// Plans the second reshard_checkpoint() with the same arguments, for all processes. Writes
/// nothing. Throws the errors that it would throw before its first byte.
ReshardPlan plan_reshard(const std::filesystem::path& source,
                         const std::filesystem::path& target_root, const Mesh& mesh,
                         const SpecRules& rules, ReshardOptions options = {});

}  // namespace shardwise
