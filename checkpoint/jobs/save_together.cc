#include "shardwise/jobs/save_together.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "shardwise/checkpoint/detail/record/save_halves.h"
#include "shardwise/checkpoint/detail/record/target.h"
#include "shardwise/checkpoint/detail/write/commit.h"
#include "shardwise/checkpoint/detail/write/staging.h"
#include "shardwise/checkpoint/detail/write/unchanged.h"
#include "shardwise/jobs/detail/save/save_place.h"
#include "shardwise/jobs/detail/save/save_together.h"
#include "shardwise/runtime/parallel.h"
#include "shardwise/runtime/stopwatch.h"

namespace shardwise {
namespace {

/// A target of any name, in a folder that all ranks share. Keeps references.
class SharedTarget final : public jobs_detail::SharedPlace {
 public:
  SharedTarget(FileSystem& files, std::filesystem::path target, Existing existing,
               std::vector<std::filesystem::path>& leftovers)
      : SharedPlace(files, target.parent_path()),
        target_(std::move(target)),
        existing_(existing),
        leftovers_(leftovers) {}

  std::optional<std::string> find_valid() const override {
    if (!detail::is_saved_target(file_system_, target_)) return std::nullopt;
    return target_.filename().string();
  }

 protected:
  std::unique_ptr<detail::Attempt> make_attempt() override {
    return std::make_unique<detail::Attempt>(
        file_system_, detail::ready_target(file_system_, target_, existing_), leftovers_);
  }
  std::vector<std::string> names() const override { return {target_.filename().string()}; }

 private:
  const std::filesystem::path target_;
  const Existing existing_;
  std::vector<std::filesystem::path>& leftovers_;
};

}  // namespace

SaveStats save_together(const Rendezvous& ranks, const std::filesystem::path& target,
                        std::vector<TensorSource> sources, JobSave job, const EncodeOptions& encode,
                        const PublishOptions& publish) {
  const Stopwatch watch;
  const auto files = encode.file_system ? encode.file_system : posix_file_system();
  std::vector<std::filesystem::path> leftovers;
  SharedTarget place(*files, detail::absolute_target(target), job.existing, leftovers);
  const Executor executor(encode.threads);
  std::unique_ptr<detail::StagingPool> pool;
  jobs_detail::SaveRequest request;
  request.terms =
      jobs_detail::terms_of(0, {.codec = encode.codec, .existing = job.existing},
                            job.starts.empty() ? 0 : job.starts.back(), std::nullopt, 0);
  request.publish = publish;
  request.encode = encode;
  request.writers = [&](std::span<const TensorSource> given) {
    detail::check_sources(given);
    static_cast<void>(detail::staging_sizes(encode.memory_budget_bytes, executor.threads(), 0));
    return detail::checked_writers(given, ranks.rank(), job.starts);
  };
  request.describe = std::move(job.describe);
  request.document = [&](std::vector<Bytes> described) {
    PublishOptions all = publish;
    if (job.document) all.objects_json = job.document(std::move(described));
    detail::check_json(all);
    return all.objects_json;
  };
  if (job.unchanged_since) request.base = [&] { return job.unchanged_since().string(); };
  request.find_earlier = [&](const std::string& base) {
    return detail::earlier_step_at(
        *files, base.empty() ? encode.unchanged_since : std::filesystem::path(base));
  };
  const detail::PartTools tools{*files, executor, pool};
  SaveStats stats =
      jobs_detail::SaveTogether(ranks, place, tools, std::move(request)).run(std::move(sources));
  stats.total_seconds = stats.blocked_seconds = watch.seconds();
  stats.publish_seconds =
      std::max(0.0, stats.total_seconds - stats.plan_seconds - stats.write_seconds);
  return stats;
}

}  // namespace shardwise
