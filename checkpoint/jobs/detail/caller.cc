#include "shardwise/jobs/detail/caller.h"

#include <string>
#include <utility>

#include "shardwise/bucket/detail/bucket_files.h"
#include "shardwise/checkpoint/detail/internals.h"
#include "shardwise/jobs/detail/save/bucket_target.h"
#include "shardwise/jobs/detail/save/save_place.h"
#include "shardwise/storage/object/bucket_path.h"

namespace shardwise::jobs_detail {
namespace {

/// A generation of a step in a bucket.
class BucketPlace final : public AttemptPlace {
 public:
  BucketPlace(const std::filesystem::path& target, Existing existing)
      : target_(target),
        step_(*target_.files, *target_.bucket, target_.root, target_.step),
        existing_(existing) {
    AttemptNotice notice;
    notice.existing = existing;
    step_.begin(notice);
    id_ = notice.id;
    directory_ = target_.root / notice.directory;
  }

  const std::string& id() const override { return id_; }
  const std::filesystem::path& directory() const override { return directory_; }
  void publish(Manifest& manifest, SaveStats& stats, std::span<const std::byte> index) override {
    step_.commit(manifest, stats, index, existing_, true);
    target_.remove_replaced(stats);
  }

 private:
  const BucketTarget target_;
  BucketStep step_;
  const Existing existing_;
  std::string id_;
  std::filesystem::path directory_;
};

}  // namespace

std::unique_ptr<CheckpointAttempt> attempt_at(const std::filesystem::path& target,
                                              Existing existing) {
  if (!in_bucket(target)) return std::make_unique<CheckpointAttempt>(target, existing);
  return Internals::attempt_at(std::make_unique<BucketPlace>(target, existing));
}

ShardRecord write_shards_at(const std::filesystem::path& directory, const ShardWriter& writer,
                            std::vector<TensorSource> sources, EncodeOptions options) {
  if (in_bucket(directory)) {
    options.file_system = bucket_detail::bucket_files(directory.parent_path());
  }
  return write_shards(directory, writer, std::move(sources), options);
}

bool is_saved_at(const std::filesystem::path& target) {
  if (!in_bucket(target)) return is_saved(target);
  const BucketTarget there(target);
  return BucketStep(*there.files, *there.bucket, there.root, there.step).find_valid().has_value();
}

}  // namespace shardwise::jobs_detail
