#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shardwise/bucket/detail/bucket_root.h"
#include "shardwise/checkpoint/detail/root/attempt.h"
#include "shardwise/checkpoint/detail/root/marks/lease.h"
#include "shardwise/checkpoint/detail/write/part.h"
#include "shardwise/checkpoint/save.h"
#include "shardwise/jobs/detail/save/messages.h"
#include "shardwise/jobs/detail/save/terms.h"
#include "shardwise/runtime/process/process_group.h"
#include "shardwise/runtime/process/rendezvous.h"
#include "shardwise/storage/file.h"

namespace shardwise::jobs_detail {

using namespace detail;

/// Where the files of a save go, and how they become one checkpoint. For one save, on one rank, by
/// one thread; its attempt is removed with it, unless it was published.
class SavePlace {
 public:
  virtual ~SavePlace() = default;

  /// The name of the valid checkpoint that Existing::skip leaves as it is; nothing if nothing is
  /// there. Throws already_exists if something else is there, io.
  virtual std::optional<std::string> find_valid() const = 0;

  /// Rank 0 makes its attempt and writes into the notice where the others write.
  virtual void begin(AttemptNotice& notice) = 0;

  /// Called on each rank with the notice: gives the directory that it writes in. Throws io.
  virtual AttemptDirectory enter(const Rendezvous& ranks, const AttemptNotice& notice) = 0;

  /// Called on each rank if rank 0 skips: gives the checkpoint that is there for this rank.
  virtual std::filesystem::path skip(int rank, const AttemptNotice& notice) const = 0;

  /// True if the manifest's directory has one index of all files.
  virtual bool has_index() const { return true; }

  /// Says whether the directory that enter() gave is still there.
  virtual bool is_there() const { return true; }

  /// Called on rank 0, with the manifest of all parts. Fills in the statistics that are known.
  virtual void publish(const Rendezvous& ranks, Manifest& manifest, SaveStats& stats,
                       std::span<const std::byte> index, Existing existing) = 0;

  /// Called on each rank, last. `stats` are rank 0's, with a name in the root as the directory;
  /// they get this rank's path.
  virtual void finish(const Rendezvous& ranks, SaveStats& stats, Existing existing) = 0;

  /// The checkpoint that the attempt with this id has become; nothing if it has not, or nobody
  /// knows. So a rank finds out that did not hear how the save ended.
  virtual std::optional<std::filesystem::path> find_committed(const std::string& id) const = 0;
};

/// One root for all ranks. Keeps references.
class SharedPlace : public SavePlace {
 public:
  SharedPlace(FileSystem& file_system, std::filesystem::path root)
      : file_system_(file_system), root_(std::move(root)) {}

  std::filesystem::path skip(int rank, const AttemptNotice& notice) const override;
  void finish(const Rendezvous& ranks, SaveStats& stats, Existing existing) override;
  std::optional<std::filesystem::path> find_committed(const std::string& id) const override;

 protected:
  /// The names that the attempt may have got; those of a step.
  virtual std::vector<std::string> names() const = 0;
  std::vector<std::string> names_of(std::int64_t step) const;

  FileSystem& file_system_;
  const std::filesystem::path root_;
};

/// One folder for all ranks, on a file system that they share.
class SharedFolder : public SharedPlace {
 public:
  using SharedPlace::SharedPlace;

  void begin(AttemptNotice& notice) override;
  AttemptDirectory enter(const Rendezvous& ranks, const AttemptNotice& notice) override;
  bool is_there() const override;
  void publish(const Rendezvous& ranks, Manifest& manifest, SaveStats& stats,
               std::span<const std::byte> index, Existing existing) override;

 protected:
  virtual std::unique_ptr<Attempt> make_attempt() = 0;

 private:
  std::unique_ptr<Attempt> attempt_;  // rank 0's
  std::filesystem::path directory_;
};

/// A step of a root that all ranks share.
class SharedStep final : public SharedFolder {
 public:
  /// A lease that could not be removed goes to `leftovers`; see Attempt.
  SharedStep(FileSystem& file_system, std::filesystem::path root, std::int64_t step,
             std::vector<std::filesystem::path>& leftovers, Spare* spare)
      : SharedFolder(file_system, std::move(root)),
        step_(step),
        leftovers_(leftovers),
        spare_(spare) {}

  std::optional<std::string> find_valid() const override;

 protected:
  std::unique_ptr<Attempt> make_attempt() override;
  std::vector<std::string> names() const override { return names_of(step_); }

 private:
  const std::int64_t step_;
  std::vector<std::filesystem::path>& leftovers_;
  Spare* const spare_;
};

/// A step of a root in a bucket: the files go to a generation that rank 0 claims, and one put of
/// the manifest publishes it (docs/object_stores.md, heading "Protocol"). Destroyed before that,
/// the generation is sealed. Keeps references.
class BucketStep final : public SharedPlace {
 public:
  BucketStep(FileSystem& file_system, bucket_detail::BucketRoot& bucket, std::filesystem::path root,
             std::int64_t step)
      : SharedPlace(file_system, std::move(root)), bucket_(bucket), step_(step) {}
  ~BucketStep() override;

  std::optional<std::string> find_valid() const override;
  void begin(AttemptNotice& notice) override;
  AttemptDirectory enter(const Rendezvous& ranks, const AttemptNotice& notice) override;
  void publish(const Rendezvous& ranks, Manifest& manifest, SaveStats& stats,
               std::span<const std::byte> index, Existing existing) override;

  /// publish() without a rendezvous. `check` may be null, and is called right before the commit.
  void commit(Manifest& manifest, SaveStats& stats, std::span<const std::byte> index,
              Existing existing, bool written_by_others,
              const std::function<void()>& check = nullptr);

 protected:
  std::vector<std::string> names() const override { return names_of(step_); }

 private:
  bucket_detail::BucketRoot& bucket_;
  const std::int64_t step_;
  Maker maker_;                      // a forked child's copy leaves all as it is
  std::optional<StepName> claimed_;  // rank 0's, until it is published
};

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
