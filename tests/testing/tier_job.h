#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "shardwise/checkpoint/detail/format/step_name.h"
#include "shardwise/tiers/detail/inventory.h"
#include "shardwise/tiers/tiers.h"
#include "testing/host_tensor.h"
#include "testing/socket_transport.h"
#include "testing/temp_dir.h"

// Jobs in two tiers: their processes are threads, and their hosts are directories of the job's.
namespace shardwise {

inline std::filesystem::path host_of(const std::filesystem::path& job, std::int64_t number) {
  return job / ("host" + std::to_string(number));
}

/// The directory of a process in its host's, if each host has one.
inline std::filesystem::path process_of(const std::filesystem::path& job, int rank) {
  return host_of(job, rank) / tiers_detail::process_directory(rank);
}

inline std::filesystem::path fast_step(const std::filesystem::path& job, int rank,
                                       std::int64_t step) {
  return process_of(job, rank) / detail::to_string(detail::StepName{.step = step});
}

/// Runs on every rank, in the fast root of its host; their errors. `files`: of a rank, null for the
/// real ones.
inline std::vector<std::string> run_tiers(
    const std::filesystem::path& job, int ranks, const TierOptions& options,
    const std::function<void(Devices&, TieredManager&)>& run,
    const std::function<std::shared_ptr<FileSystem>(int)>& files = nullptr) {
  return run_ranks(ranks, {}, [&](std::shared_ptr<SocketTransport> transport) {
    const int rank = transport->rank();
    TierOptions own = options;
    own.group = ProcessGroup(std::move(transport), std::chrono::minutes(1));
    own.write.threads = 1;
    if (files) own.file_system = files(rank);
    Devices devices(own.devices, {.threads = 1, .group = own.group.duplicate()});
    TieredManager manager(host_of(job, rank / own.local.processes_per_host), job / "durable", own);
    run(devices, manager);
  });
}

/// A job of a small model, and the step it has to find when it starts again.
class TierJob : public testing::Test {
 protected:
  static constexpr std::int64_t kDevices = 12;

  /// Some of a model; the seed makes it that of a step.
  static std::vector<HostTensor> model(const Mesh& mesh, const std::string& spec,
                                       std::uint64_t seed) {
    std::vector<HostTensor> tensors;
    for (const char* name : {"a", "b", "c"}) {
      tensors.push_back(
          host_tensor(name, DType::f32, {60, 500}, mesh.to_string(), spec, Values::noise, seed++));
    }
    return tensors;
  }

  static std::vector<TensorRequest> requests_for(std::span<const HostTensor> tensors,
                                                 const Mesh& mesh, const std::string& spec) {
    std::vector<TensorRequest> requests;
    for (const HostTensor& tensor : tensors) {
      requests.push_back(
          {tensor.name,
           {tensor.spec.dtype, tensor.spec.shape, Sharding(mesh, PartitionSpec::parse(spec))}});
    }
    return requests;
  }

  std::filesystem::path host(int number) const { return host_of(dir_.path(), number); }
  std::filesystem::path durable() const { return dir_ / "durable"; }

  /// Runs on every rank; `per_host` of them share a fast root. Returns their errors.
  std::vector<std::string> on_ranks(
      int ranks, int per_host, TierOptions options,
      const std::function<void(Devices&, TieredManager&)>& run) const {
    options.local.processes_per_host = per_host;
    options.devices = kDevices;
    return run_tiers(dir_.path(), ranks, options, run);
  }

  /// The newest step, which must hold these tensors.
  static void expect_latest(Devices& devices, TieredManager& manager, Tier tier, std::int64_t step,
                            std::span<const HostTensor> tensors,
                            std::span<const TensorRequest> requests) {
    const auto found = manager.latest(addressable_boxes(devices, requests));
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->tier, tier) << found->to_string();
    EXPECT_EQ(found->step.step, step) << found->to_string();
    const CheckpointReader reader = found->open({.threads = 1});
    EXPECT_EQ(reader.step(), step);
    const std::vector<ShardedArray> arrays = reader.restore(devices, requests);
    for (std::size_t t = 0; t < arrays.size(); ++t) {
      EXPECT_TRUE(holds_addressable(arrays[t], tensors[t])) << tensors[t].name;
    }
  }

  const TempDir dir_;
};

}  // namespace shardwise
