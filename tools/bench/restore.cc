#include "bench/restore.h"

#include <fmt/core.h>
#include <malloc.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "bench/machine.h"
#include "bench/peak_memory.h"
#include "interrupt.h"
#include "output.h"
#include "parse.h"
#include "shardwise/runtime/stopwatch.h"
#include "shardwise/shard/error.h"

namespace shardwise::tools {
namespace fs = std::filesystem;
namespace {

// The sharding of a restored tensor: as it was saved, unless the options say otherwise.
Sharding wanted_sharding(const TensorInfo& info, const RestoreBenchOptions& options) {
  try {
    const Sharding saved = saved_sharding(info);
    const bool as_saved = !options.mesh && !options.spec;
    Sharding sharding(options.mesh ? parse_mesh(*options.mesh) : saved.mesh(),
                      options.spec ? PartitionSpec::parse(*options.spec) : saved.spec(),
                      as_saved ? saved.policy() : UnevenPolicy());
    static_cast<void>(sharding.shard_shape(info.shape));
    static_cast<void>(devices_for(sharding.mesh()));
    return sharding;
  } catch (const Error& error) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("bench restore: tensor {}: {}", info.name, error.what()));
  }
}

// How bench save has filled the tensors; absent if another program has written them.
std::optional<DataKind> data_kind(const CheckpointReader& reader) {
  const auto user = nlohmann::json::parse(reader.user_json());
  const nlohmann::json::json_pointer kind("/shardwise_bench/data");
  if (!user.is_object() || !user.contains(kind) || !user[kind].is_string()) return std::nullopt;
  try {
    return parse_data_kind(user[kind].get<std::string>());
  } catch (const Error&) {
    return std::nullopt;  // another version's
  }
}

}  // namespace

RestoreBench::RestoreBench(const fs::path& directory, RestoreBenchOptions options)
    : directory_(directory), options_(std::move(options)) {
  const CheckpointReader reader(directory_, {.threads = options_.threads});
  for (const TensorInfo& info : reader.tensors()) {
    requests_.push_back({info.name, {info.dtype, info.shape, wanted_sharding(info, options_)}});
    const Sharding& sharding = requests_.back().spec.sharding;
    num_devices_ = std::max(num_devices_, devices_for(sharding.mesh()));
    logical_bytes_ += info.logical_bytes;
    device_bytes_ += num_bytes(sharding.shard_shape(info.shape), size_bytes(info.dtype)) *
                     static_cast<std::size_t>(sharding.mesh().size());
  }
  if (logical_bytes_ == 0) {
    throw Error(ErrorCode::not_found,
                fmt::format("bench restore: {} holds no values", directory_.string()));
  }
  kind_ = data_kind(reader);
  find_files();
  check_memory(device_bytes_ + file_bytes_ + ReadOptions().memory_budget_bytes);
  raw_.emplace(file_bytes_);
  devices_.emplace(num_devices_, DevicesOptions{.threads = options_.threads});
}

void RestoreBench::find_files() {
  for (const auto& entry : fs::directory_iterator(directory_)) {
    if (!entry.is_regular_file()) continue;
    files_.push_back(entry.path());
    if (entry.path().filename().string().rfind("shards-", 0) != 0) continue;
    shard_files_.push_back(entry.path());
    file_bytes_ += entry.file_size();
  }
  std::sort(shard_files_.begin(), shard_files_.end());
}

MeasuredRestores RestoreBench::run() {
  MeasuredRestores measured;
  for (int round = 0; round <= options_.repeat; ++round) {
    if (options_.cold) drop_files();
    const double raw = read(round);
    if (options_.cold) drop_files();
    if (options_.fresh_memory) give_memory_back();
    const PeakMemory memory;
    const Restored restored = restore(round);
    if (round == 0) {  // warms up; new to the memory that is kept from then on
      measured.peak_host_bytes = memory.growth_bytes();
      if (measured.peak_host_bytes) {
        *measured.peak_host_bytes -= std::min(*measured.peak_host_bytes, in_use_bytes());
      }
      measured.stats = restored.stats;
      measured.difference = difference(restored.arrays);
      if (kind_) measured.verified = measured.difference.empty();
      if (!measured.difference.empty()) break;
      continue;
    }
    measured.raw_seconds.push_back(raw);
    measured.restore_seconds.push_back(restored.seconds);
    measured.open_seconds.push_back(restored.open_seconds);
  }
  return measured;
}

std::string RestoreBench::title(int round, const char* what) const {
  return round == 0 ? fmt::format("warm up, {}", what)
                    : fmt::format("round {} of {}, {}", round, options_.repeat, what);
}

void RestoreBench::drop_files() const {
  for (const fs::path& file : files_) drop_from_cache(file);
  touch_free_memory(file_bytes_);  // the page cache's
}

// Devices keep the memory of their arrays for the next ones.
void RestoreBench::give_memory_back() {
  devices_.emplace(num_devices_, DevicesOptions{.threads = options_.threads});
  malloc_trim(0);
  touch_free_memory(device_bytes_);
}

double RestoreBench::read(int round) const {
  ProgressLine line(title(round, "raw reads"));
  return read_raw(shard_files_, raw_->bytes(), threads(), line.function());
}

RestoreBench::Restored RestoreBench::restore(int round) {
  ProgressLine line(title(round, "restore"));
  ReadOptions read{.threads = options_.threads};
  read.progress = [progress = line.function()](const Progress& so_far) {
    InterruptNote::check("bench");
    if (progress) progress(so_far);
  };
  const Stopwatch watch;
  const CheckpointReader reader(directory_, read);
  const double open = watch.seconds();
  std::vector<ShardedArray> arrays = reader.restore(*devices_, requests_);
  const double seconds = watch.seconds();
  return {std::move(arrays), reader.stats(), seconds, open};
}

std::size_t RestoreBench::in_use_bytes() const {
  std::size_t bytes = 0;
  for (const DeviceId id : devices_->addressable()) {
    bytes += devices_->at(id).memory().in_use_bytes;
  }
  return bytes;
}

// Compares the shards of all devices with freshly made data.
std::string RestoreBench::difference(const std::vector<ShardedArray>& arrays) const {
  if (!kind_) return {};
  ProgressLine line("compare");
  const ProgressFunction progress = line.function();
  std::size_t done = 0;
  for (std::size_t t = 0; t < arrays.size(); ++t) {
    InterruptNote::check("bench");
    const ShardedArray& array = arrays[t];
    const BenchData data(*kind_, array.dtype(), array.shape());
    std::vector<std::string> found(static_cast<std::size_t>(array.sharding().mesh().size()));
    devices_->executor().parallel_for(std::ssize(found), [&](std::int64_t position) {
      found[static_cast<std::size_t>(position)] =
          data.difference(static_cast<std::int64_t>(t), array.shard(position));
    });
    for (std::string& text : found) {
      if (!text.empty()) return std::move(text);
    }
    done += num_bytes(array.shape(), size_bytes(array.dtype()));
    if (progress) progress({done, logical_bytes_});
  }
  return {};
}

}  // namespace shardwise::tools
