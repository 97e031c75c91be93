#include "shardwise/jobs/detail/save/group_save.h"

#include <fmt/format.h>

#include <exception>
#include <memory>
#include <string>
#include <utility>

#include "shardwise/jobs/detail/save/save_place.h"
#include "shardwise/jobs/detail/save/save_together.h"
#include "shardwise/runtime/process/rendezvous.h"
#include "shardwise/shard/error.h"

namespace shardwise::jobs_detail {
namespace {

const EarlierStep& earlier_of(const SaveContext& context) {
  if (context.earlier->directory.empty()) *context.earlier = context.find_earlier();
  return *context.earlier;
}

std::unique_ptr<SavePlace> place_of(const SaveContext& context, const ProcessGroup& group,
                                    std::int64_t step, const SaveOptions& options) {
  if (context.bucket != nullptr) {
    return std::make_unique<BucketStep>(context.file_system, *context.bucket, context.root, step);
  }
  if (!context.local_roots) {
    return std::make_unique<SharedStep>(context.file_system, context.root, step, context.leftovers,
                                        &context.spare);
  }
  return std::make_unique<OwnPlace>(
      context.file_system, context.root, step, context.leftovers, &context.spare,
      *context.local_roots, group, options.writers, [&context] {
        return context.earlier == nullptr ? std::filesystem::path() : earlier_of(context).directory;
      });
}

SaveRequest request_of(const SaveContext& context, const ProcessGroup& group, std::int64_t step,
                       const SaveOptions& options) {
  SaveRequest request{
      .step = step,
      .is_damaged = context.is_damaged,
      .terms =
          terms_of(step, options, context.devices, context.local_roots, context.most_failed_saves),
      .publish = {.user_json = options.user_json,
                  .objects_json = options.objects_json,
                  .metrics = options.metrics,
                  .process = "rank"},
      .encode = {.codec = options.codec,
                 .memory_budget_bytes = options.memory_budget_bytes,
                 .progress = options.progress},
      .writers =
          [&](std::span<const TensorSource> sources) {
            return writers_for(sources, options.writers * group.size(), context.devices);
          },
      .writers_of_a_rank = options.writers,
      .huffman = context.huffman};
  if (context.earlier != nullptr) {
    request.find_earlier = [&context](const std::string&) { return earlier_of(context); };
  }
  return request;
}

}  // namespace

SaveStats run_save(const SaveContext& context, const ProcessGroup& group, std::int64_t step,
                   std::vector<TensorSource> sources, const SaveOptions& options) {
  const std::string subject = fmt::format("save step {}", step);
  const GroupRendezvous ranks(group, subject);
  const std::unique_ptr<SavePlace> place = place_of(context, group, step, options);
  const PartTools tools{context.file_system, context.executor, context.pool};
  std::exception_ptr callers_error;
  try {
    SaveTogether save(ranks, *place, tools, request_of(context, group, step, options));
    try {
      SaveStats stats = save.run(std::move(sources));
      if (context.earlier != nullptr && !stats.skipped) {
        *context.earlier = {stats.directory, save.files()};
      }
      return stats;
    } catch (...) {
      callers_error = save.callers_error();
      throw;
    }
  } catch (const Error& e) {
    if (callers_error) std::rethrow_exception(callers_error);
    context.spare.drop();  // that it was there may be the reason
    abort_group(group, subject);
    throw Error(e, fmt::format("{}: {}", subject, e.what()));
  } catch (...) {
    abort_group(group, subject);
    throw;
  }
}

}  // namespace shardwise::jobs_detail
