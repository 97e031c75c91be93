// One process of a job that is killed by group_killed_test.cc. It restores the latest step, says
// which, and saves one step after another, saying each; it ends if a save fails, saying why.
//
//   group_program KIND ROOT RANK SOCKET...      a socket to each rank, -1 for its own
//
// KIND: "root", one root for all; "tiers", a fast one of each rank in ROOT, and a durable one.

#include <csignal>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/checkpoint/reader.h"
#include "shardwise/jobs/manager.h"
#include "shardwise/tiers/tiers.h"
#include "testing/fault_model.h"
#include "testing/socket_transport.h"

namespace {

using namespace shardwise;

constexpr std::int64_t kMostSaves = 10'000;  // it is killed long before

const std::vector<HostTensor>& model(std::int64_t step) {
  static const std::vector<HostTensor> models[] = {killed_model(1), killed_model(2),
                                                   killed_model(3)};
  return models[step % 3];
}

/// Prints the step that it resumes, and saves the next ones.
template <class Manager>
void go_on(Manager& manager, std::int64_t step) {
  std::cout << "restored " << step << std::endl;
  for (std::int64_t saves = 0; saves < kMostSaves; ++saves) {
    ++step;
    manager.save(step, sources_of(model(step)), {.codec = Codec::none});
    std::cout << "saved " << step << std::endl;
  }
}

void run(const char* root, const ProcessGroup& group) {
  CheckpointManager manager(
      root, {.keep = {.last = 2}, .write = {.threads = 1}, .group = group, .devices = 4});
  std::int64_t step = 0;
  if (const auto latest = manager.latest()) {
    step = latest->step.step;
    if (!holds(CheckpointReader(latest->step.directory, {.threads = 1}), model(step))) {
      throw std::runtime_error("the latest step has other values");
    }
  }
  go_on(manager, step);
}

void run_tiers(const std::filesystem::path& root, const ProcessGroup& group) {
  TieredManager manager(root / ("host" + std::to_string(group.rank())), root / "durable",
                        {.local = {.copies = 1},
                         .drain = {.every = 3},
                         .write = {.threads = 1},
                         .group = group,
                         .devices = 4});
  Devices devices(4, {.threads = 1, .group = group.duplicate()});
  std::vector<TensorRequest> requests;
  for (const HostTensor& tensor : model(0)) requests.push_back({tensor.name, tensor.spec});
  std::int64_t step = 0;
  if (const auto found = manager.latest(addressable_boxes(devices, requests))) {
    step = found->step.step;
    const auto arrays = found->open({.threads = 1}).restore(devices, requests);
    for (std::size_t t = 0; t < arrays.size(); ++t) {
      if (holds_addressable(arrays[t], model(step)[t])) continue;
      throw std::runtime_error("the latest step has other values");
    }
  }
  go_on(manager, step);
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  std::vector<int> sockets;
  for (int i = 4; i < argc; ++i) sockets.push_back(std::atoi(argv[i]));
  const ProcessGroup group(std::make_shared<SocketTransport>(std::atoi(argv[3]), sockets));
  try {
    if (std::string_view(argv[1]) == "tiers") {
      run_tiers(argv[2], group);
    } else {
      run(argv[2], group);
    }
    return 0;
  } catch (const std::exception& e) {
    group.abort(e.what());
    std::cout << "failed: " << e.what() << std::endl;
    return 3;
  }
}
