#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "shardwise/checkpoint/save.h"
#include "shardwise/jobs/policies.h"

namespace shardwise::detail {
class Packer;
class Unpacker;
}  // namespace shardwise::detail

namespace shardwise::jobs_detail {

using detail::Packer;
using detail::Unpacker;

/// Extra terms of a manager's root, which tiers set.
struct RootTerms {
  /// Each process gives a root that the others do not see. A step of it has the manifest, the shard
  /// files that the process has written, and copies of others': all roots together hold a
  /// checkpoint, and TieredManager finds it there. keep_last is 0, or 2 or more: if a process dies
  /// while others commit, the step before is the newest that is whole. Not with latest().
  std::optional<LocalRoots> local_roots = {};

  /// The other such roots that this process sees, of ranks that there are or were: a run that goes
  /// back sets steps aside in these as in its own. Null: none.
  std::function<std::vector<std::filesystem::path>()> others_of_host = nullptr;
};

/// Throws invalid_argument, which begins with `what`, if so many processes cannot have such local
/// roots.
void check_local_roots(const std::string& what, const RootTerms& terms, std::int64_t keep_last,
                       int processes);

/// Terms that all processes of a save must have given alike.
struct SaveTerms {
  std::int64_t step = 0;
  Codec codec = Codec::zstd;
  Existing existing = Existing::fail;
  std::int64_t writers = 1, devices = 0;
  std::int64_t most_failed_saves = 0;                ///< 0: OnSaveError::raise
  std::int64_t copies = -1, processes_per_host = 0;  ///< of LocalRoots; -1: no such roots
  std::uint64_t user = 0, objects = 0;               ///< hashes of the texts

  bool operator==(const SaveTerms&) const = default;
};

/// The terms of one process.
SaveTerms terms_of(std::int64_t step, const SaveOptions& options, std::int64_t devices,
                   const std::optional<LocalRoots>& local_roots, std::int64_t most_failed_saves);

/// Says in words the first term that differs between a rank and rank 0; empty if all are equal.
std::string difference(const SaveTerms& of_first, const SaveTerms& own, int rank);

void put(Packer& packer, const SaveTerms& terms);
SaveTerms take_terms(Unpacker& unpacker);

}  // namespace shardwise::jobs_detail
