// One process of a job that is killed by group_killed_test.cc. It restores what is there, says
// which step, and saves one step after another, saying each; it ends where a save fails, saying
// why.
//
//   group_program ROOT RANK SOCKET...      a socket to each rank, -1 for its own

#include <csignal>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "shardwise/checkpoint/manager.h"
#include "shardwise/checkpoint/reader.h"
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

void run(const char* root, const ProcessGroup& group) {
  CheckpointManager manager(root, {.keep_last = 2, .threads = 1, .group = group, .devices = 4});
  std::int64_t step = 0;
  if (const auto latest = manager.latest()) {
    step = latest->step.step;
    if (!holds(CheckpointReader(latest->step.directory, {.threads = 1}), model(step))) {
      throw std::runtime_error("the latest step has other values");
    }
  }
  std::cout << "restored " << step << std::endl;
  for (std::int64_t saves = 0; saves < kMostSaves; ++saves) {
    ++step;
    manager.save(step, sources_of(model(step)), {.codec = Codec::none});
    std::cout << "saved " << step << std::endl;
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  std::vector<int> sockets;
  for (int i = 3; i < argc; ++i) sockets.push_back(std::atoi(argv[i]));
  const ProcessGroup group(std::make_shared<SocketTransport>(std::atoi(argv[2]), sockets));
  try {
    run(argv[1], group);
    return 0;
  } catch (const std::exception& e) {
    group.abort(e.what());
    std::cout << "failed: " << e.what() << std::endl;
    return 3;
  }
}
