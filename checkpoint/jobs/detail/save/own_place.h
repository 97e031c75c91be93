#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "shardwise/jobs/detail/save/save_place.h"
#include "shardwise/jobs/detail/save/terms.h"
#include "shardwise/runtime/process/process_group.h"

namespace shardwise::jobs_detail {

using namespace detail;

/// A root of its own for each rank, which the others do not see: a rank has the shard files that it
/// writes and copies of others', and the manifest (RootTerms::local_roots). Keeps references.
class OwnPlace final : public SavePlace {
 public:
  /// `writers`: of each rank. `earlier`: the directory of the step before in this root, whose files
  /// need not be copied again; called on each rank. `group` serves this save alone.
  OwnPlace(FileSystem& file_system, const std::filesystem::path& root, std::int64_t step,
           std::vector<std::filesystem::path>& leftovers, Spare* spare, const LocalRoots& roots,
           const ProcessGroup& group, std::int64_t writers,
           std::function<std::filesystem::path()> earlier)
      : file_system_(file_system),
        root_(root),
        step_(step),
        leftovers_(leftovers),
        spare_(spare),
        roots_(roots),
        group_(group),
        writers_(writers),
        earlier_(std::move(earlier)) {}

  std::optional<std::string> find_valid() const override;
  void begin(AttemptNotice& notice) override;
  AttemptDirectory enter(const Rendezvous& ranks, const AttemptNotice& notice) override;
  std::filesystem::path skip(int rank, const AttemptNotice& notice) const override;
  bool has_index() const override { return false; }
  void publish(const Rendezvous& ranks, Manifest& manifest, SaveStats& stats,
               std::span<const std::byte> index, Existing existing) override;
  void finish(const Rendezvous& ranks, SaveStats& stats, Existing existing) override;
  std::optional<std::filesystem::path> find_committed(const std::string&) const override {
    return {};
  }

 private:
  void make_attempt();
  std::vector<int> holders_of(const FileEntry& file) const;
  void copy_to_others(const Manifest& manifest) const;
  void check_own_directory(const Manifest& manifest) const;

  FileSystem& file_system_;
  const std::filesystem::path& root_;
  const std::int64_t step_;
  std::vector<std::filesystem::path>& leftovers_;
  Spare* const spare_;
  const LocalRoots& roots_;
  const ProcessGroup& group_;
  const std::int64_t writers_;
  const std::function<std::filesystem::path()> earlier_;
  std::optional<Attempt> attempt_;
  Manifest manifest_;  // rank 0's
  std::string text_;   // of the manifest
};

}  // namespace shardwise::jobs_detail
