#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shardwise/runtime/graph/graph.h"
#include "shardwise/runtime/spmd/executable.h"

namespace shardwise::detail {

/// The executables that were used last, found by their programs; at most a given number.
/// Thread-compatible.
class KnownExecutables {
 public:
  /// Throws invalid_argument for fewer than one.
  explicit KnownExecutables(std::size_t most);

  /// The executable of a program on a mesh. A missing one is made, and errors of that pass through.
  ///
  /// An input that was unmarked when its executable was planned was cut as the plan chose. A
  /// program whose array or mark has that cut finds the executable again: the first step of a job,
  /// whose weights begin on the host, is planned once.
  std::shared_ptr<const Executable> get(const std::shared_ptr<Graph>& traced, const Mesh& mesh,
                                        const CompileOptions& options);

  /// True if the last get() found it.
  bool last_was_known() const { return misses_in_a_row_ == 0; }

  /// The reason why the last miss was one; "" for the first.
  const std::string& miss() const { return miss_; }

  std::size_t size() const { return known_.size(); }

  /// The number that were dropped to make room.
  std::int64_t dropped() const { return dropped_; }

 private:
  using Marks = std::vector<std::optional<PartitionSpec>>;

  struct Known {
    std::uint64_t hash;  ///< of the program without the marks of its inputs
    Mesh mesh;
    CompileOptions options;
    Marks marks;  ///< of the inputs
    std::shared_ptr<const Executable> executable;
  };

  bool is_it(const Known& one, Graph& traced, const Marks& marks, const Mesh& mesh,
             const CompileOptions& options) const;
  /// The inputs' marks are not in `traced` but in `marks`.
  std::string why_missed(const Graph& traced, const Marks& marks, const Mesh& mesh,
                         const CompileOptions& options) const;

  std::size_t most_;
  std::list<Known> known_;  ///< the last used first
  std::int64_t dropped_ = 0;
  std::int64_t misses_in_a_row_ = 0;
  std::string miss_;
};

}  // namespace shardwise::detail
