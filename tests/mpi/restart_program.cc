// A job that ends, and goes on with another number of processes. run_tiers.cmake starts it again
// and again, and loses hosts in between.
//
//   mpirun -n 4 restart_program PART FOLDER [PROCESSES_PER_HOST]

#include <algorithm>
#include <cstring>
#include <exception>
#include <filesystem>
#include <functional>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "shardwise/checkpoint/verify.h"
#include "shardwise/runtime/process/mpi_transport.h"
#include "shardwise/shard/error.h"
#include "shardwise/tiers/tiers.h"
#include "testing/host_tensor.h"
#include "testing/same_shards.h"

namespace shardwise {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kDevices = 12;

void need(bool holds, const std::string& what) {
  if (!holds) throw Error(ErrorCode::corrupt, what);
}

struct Job {
  ProcessGroup group;
  fs::path folder;
  int per_host;  ///< processes that share a fast root
  Devices devices{kDevices, {.threads = 1, .group = group.duplicate()}};

  std::string processes() const { return std::to_string(group.size()) + " processes "; }

  void say(const std::string& text) const {
    if (group.rank() == 0) std::cout << processes() << text << std::endl;
  }

  /// Sum of the numbers of all processes.
  std::uint64_t sum(std::uint64_t own) const {
    const auto bytes = std::as_bytes(std::span(&own, 1));
    std::uint64_t total = 0, number = 0;
    for (const Bytes& heard : group.all_gather(Bytes(bytes.begin(), bytes.end()))) {
      std::memcpy(&number, heard.data(), sizeof number);
      total += number;
    }
    return total;
  }
};

/// The state of the training at a step: each device holds something else, the same as some others,
/// the same as all.
std::vector<HostTensor> model(std::int64_t step) {
  const auto seed = static_cast<std::uint64_t>(10 * step);
  return {
      host_tensor("all", DType::bf16, {700, 64}, "12", "-,-", Values::noise, seed),
      host_tensor("one", DType::f32, {600, 500}, "12", "0,-", Values::noise, seed + 1),
      host_tensor("some", DType::f32, {3, 50000}, "data=4,model=3", "model,-", Values::noise,
                  seed + 2),
  };
}

std::vector<TensorRequest> requests_for(std::span<const HostTensor> tensors) {
  std::vector<TensorRequest> requests;
  for (const HostTensor& tensor : tensors) requests.push_back({tensor.name, tensor.spec});
  return requests;
}

/// The same tensors, cut in another way.
std::vector<TensorRequest> other_requests_for(std::span<const HostTensor> tensors) {
  std::vector<TensorRequest> requests = requests_for(tensors);
  for (TensorRequest& request : requests) {
    request.spec.sharding =
        Sharding(Mesh::parse("data=3,model=4"), PartitionSpec::parse("data,model"));
  }
  return requests;
}

/// Hosts are folders, each with a fast root that only its processes know.
TieredManager tiers_of(const Job& job) {
  TierOptions options{.local = {.copies = 1, .processes_per_host = job.per_host},
                      .write = {.threads = 1},
                      .group = job.group,
                      .devices = kDevices};
  const int host = job.group.rank() / job.per_host;
  return {job.folder / ("host" + std::to_string(host)), job.folder / "durable", options};
}

// Only the first one goes on to the durable root.
void save_tiers(Job& job) {
  TieredManager tiers = tiers_of(job);
  for (std::int64_t step = 1; step <= 3; ++step) {
    tiers.save(step, addressable_sources(job.devices, model(step)));
  }
  tiers.close();
  job.say("saved step 3, the durable one is " +
          std::to_string(tiers.durable().steps().back().step));
}

/// The newest step, which must have the bits of that step.
void restore_newest(Job& job, TieredManager& tiers, bool is_cut_so) {
  const std::vector<HostTensor> shapes = model(1);
  const auto requests = is_cut_so ? requests_for(shapes) : other_requests_for(shapes);
  const auto found = tiers.latest(addressable_boxes(job.devices, requests));
  need(found.has_value(), "there is no step");
  const CheckpointReader reader = found->open({.threads = 1});
  const std::vector<ShardedArray> arrays = reader.restore(job.devices, requests);
  const std::vector<HostTensor> tensors = model(found->step.step);
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    need(holds_addressable(arrays[t], tensors[t]), found->to_string() + ": other bits");
  }
  const auto files = job.sum(static_cast<std::uint64_t>(found->files_taken));
  job.say("restored step " + std::to_string(found->step.step) + " of the " +
          (found->tier == Tier::fast ? "fast" : "durable") + " tier, " + std::to_string(files) +
          " files from others");
}

void go_on(Job& job) {
  TieredManager tiers = tiers_of(job);
  restore_newest(job, tiers, true);
  tiers.save(4, addressable_sources(job.devices, model(4)));
  tiers.close();
  job.say("saved step 4, the durable one is " +
          std::to_string(tiers.durable().steps().back().step));
}

void restore_durable(Job& job) {
  TieredManager tiers = tiers_of(job);
  restore_newest(job, tiers, false);
  need(verify_checkpoint(job.folder / "durable/step-00000004").ok(), "it is damaged");
}

}  // namespace
}  // namespace shardwise

int main(int argc, char** argv) {
  using namespace shardwise;
  const std::map<std::string, void (*)(Job&)> parts{
      {"save_tiers", save_tiers}, {"go_on", go_on}, {"restore_durable", restore_durable}};
  if (argc < 3 || !parts.contains(argv[1])) return 2;
  const ProcessGroup group(mpi_transport());
  try {
    Job job{group, argv[2], argc > 3 ? std::stoi(argv[3]) : 1};
    parts.at(argv[1])(job);
    return 0;
  } catch (const std::exception& e) {
    group.abort(e.what());
    std::cerr << argv[1] << ": " << e.what() << '\n';
    return 1;
  }
}
