#include "shardwise/jobs/detail/save/bucket_target.h"

#include <fmt/format.h>

#include <optional>
#include <string>

#include "shardwise/bucket/detail/bucket_files.h"
#include "shardwise/checkpoint/detail/format/step_name.h"
#include "shardwise/checkpoint/detail/root/failures.h"
#include "shardwise/checkpoint/detail/root/root.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/object/bucket_path.h"

namespace shardwise::jobs_detail {

using detail::StepName;

BucketTarget::BucketTarget(const std::filesystem::path& target) {
  std::filesystem::path path = path_of_url(target.string());
  if (!path.has_filename()) path = path.parent_path();
  const std::string found = path.filename().string();
  const std::optional<StepName> name = detail::parse_step_name(found);
  const std::string needed = name ? to_string(StepName{name->step}) : "step-N";
  if (found != needed || !name) {
    throw Error(ErrorCode::unsupported,
                fmt::format("save {}: found the name {}, needed {} as its last part{}",
                            target.string(), found, needed, name ? "" : ", as in step-00000100"));
  }
  root = path.parent_path();
  step = name->step;
  bucket = bucket_detail::open_bucket_root(root);
  files = bucket_detail::bucket_files(root);
}

void BucketTarget::remove_replaced(SaveStats& stats) const {
  detail::Failures failures;
  failures.attempt([&] {
    for (const StepName& other : detail::committed_names(*files, root)) {
      if (other.step == step && root / to_string(other) != stats.directory) bucket->remove(other);
    }
  });
  stats.cleanup_error = failures.text();
}

}  // namespace shardwise::jobs_detail
