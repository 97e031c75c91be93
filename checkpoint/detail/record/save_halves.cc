#include "shardwise/checkpoint/detail/record/save_halves.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "shardwise/checkpoint/detail/format/metrics.h"
#include "shardwise/checkpoint/detail/lanes/lanes.h"
#include "shardwise/checkpoint/detail/read/written_files.h"
#include "shardwise/checkpoint/detail/root/root.h"
#include "shardwise/checkpoint/detail/write/commit.h"
#include "shardwise/runtime/stopwatch.h"
#include "shardwise/shard/error.h"

namespace shardwise::detail {

WriterMap checked_writers(std::span<const TensorSource> sources, std::int64_t writer,
                          const std::vector<std::int64_t>& starts) {
  const bool fits = starts.empty() ? writer == 0
                                   : starts_problem(starts).empty() && writer >= 0 &&
                                         writer + 1 < std::ssize(starts);
  if (!fits) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("write shards: writer {} of starts [{}]: needed are integers that "
                            "ascend from 0 on, to {} at most, one more than writers",
                            writer, fmt::join(starts, ", "), kMostDevices));
  }
  const WriterMap writers = starts.empty() ? WriterMap() : WriterMap(starts);
  devices_of(sources, writers.num_devices());
  return writers.num_writers() == 1 ? WriterMap() : writers;  // one has all devices
}

WrittenPart write_own_part(const PartTools& tools, const AttemptDirectory& directory,
                           std::uint64_t run, PartToWrite part) {
  const Stopwatch watch;
  WrittenPart done;
  done.plan = plan_save(std::move(part.sources), part.options.codec, tools.executor, part.writers,
                        part.mine);
  std::ranges::replace(done.plan.efforts, Effort::huffman_only, part.huffman);
  done.costs.plan_seconds = watch.seconds();
  std::vector<WrittenShardFile> written;
  const auto write = [&] {
    written = write_part(tools, directory, done.plan, part.options, part.find_earlier);
    if (directory.is_shared) tools.file_system.sync_directory(directory.path);
  };
  if (part.beside) {
    run_both(write, [&] { part.beside(done.plan); });
  } else {
    write();
  }
  done.costs.write_seconds = watch.seconds() - done.costs.plan_seconds;
  if (tools.pool) done.costs.memory_bytes = tools.pool->held_bytes();
  done.head = head_of(run, done.plan, part.mine, written);
  return done;
}

Bytes record_of(WrittenPart& part, bool with_list) {
  const Bytes list = encode(list_of(part.plan));
  part.head.list = hash_of(list);
  return join(part.head, part.costs, with_list ? std::span(list) : std::span<const std::byte>());
}

std::pair<Manifest, SaveStats> merged_parts(PartsOfSave parts, std::string id, std::int64_t step,
                                            const PublishOptions& options) {
  auto merged = merge(parts.heads, std::move(parts.lists), options.process);
  auto& [manifest, stats] = merged;
  manifest.id = std::move(id);
  manifest.step = step;
  manifest.user_json = options.user_json;
  manifest.objects_json = with_metrics(options.objects_json, options.metrics);
  set_costs(stats, parts.costs);
  return merged;
}

void publish_parts(FileSystem& file_system, Attempt& attempt, Manifest& manifest, SaveStats& stats,
                   std::span<const std::byte> index, Existing existing, bool written_by_others,
                   const std::function<void()>& check) {
  if (written_by_others) {
    check_written_files(file_system, attempt.directory(), manifest);
    remove_unlisted(file_system, attempt, manifest);
  }
  stats.file_bytes += complete(file_system, attempt.directory(), manifest, index);
  if (check) check();
  stats.directory = attempt.publish(existing);
}

// A spare holds no linked files.
void remove_unlisted(FileSystem& file_system, const Attempt& attempt, const Manifest& manifest) {
  if (!attempt.is_reused()) return;
  for (const std::string& name : file_system.list(attempt.directory())) {
    const bool listed = std::ranges::binary_search(manifest.files, name, {}, &FileEntry::name) ||
                        name.starts_with(kLinkedPrefix);
    if (!listed) remove_tree(file_system, attempt.directory() / name);
  }
}

}  // namespace shardwise::detail
