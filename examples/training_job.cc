// A training job to copy. It saves every 100 steps and every 10 minutes while training goes on,
// keeps the last three steps and the best one, resumes where it stopped, and saves once more when
// SIGTERM ends it:
//
//   training_job FOLDER [STEPS]
//
// It fits a line to points: y = w[0] x + w[1].
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <span>
#include <vector>

#include "shardwise/checkpoint/reader.h"
#include "shardwise/jobs/manager.h"
#include "shardwise/shard/error.h"
namespace sw = shardwise;

namespace {

const sw::ArraySpec kSpec{sw::DType::f32, {2}, sw::Sharding::replicated(sw::Mesh::line(1), 1)};

/// One step of gradient descent; gives the loss before it.
double train(std::vector<float>& w) {
  double loss = 0, slope = 0, offset = 0;
  for (int i = 0; i < 100; ++i) {
    const double x = i / 50.0 - 1, y = 3 * x - 2, wrong = w[0] * x + w[1] - y;
    loss += wrong * wrong / 100;
    slope += 2 * wrong * x / 100;
    offset += 2 * wrong / 100;
  }
  w[0] -= static_cast<float>(0.001 * slope);
  w[1] -= static_cast<float>(0.001 * offset);
  return loss;
}

void run(const char* folder, std::int64_t steps) {
  sw::CheckpointManager manager(folder,
                                {.keep = {.last = 3, .best = sw::BestSteps{.metric = "loss"}},
                                 .when = {.every = 100,
                                          .interval = std::chrono::minutes(10),
                                          .preemption_signals = {SIGTERM},
                                          .preemption_grace = std::chrono::seconds(30)}});
  std::vector<float> w(2, 0.0f);
  std::int64_t step = 0;
  const auto found = manager.restore_latest([&](const sw::CheckpointReader& reader) {
    reader.read("w", sw::Box::whole(kSpec.shape), std::as_writable_bytes(std::span(w)));
  });
  if (found) {
    step = found->step.step;
    std::cout << "went on after step " << step << '\n';
    for (const auto& r : found->rejected) std::cout << r.directory << ": " << r.reason << '\n';
  }
  while (step < steps && !manager.preemption().is_reached) {
    const double loss = train(w);
    if (++step % 100 == 0) std::cout << "step " << step << ", loss " << loss << std::endl;
    if (!manager.should_save(step)) continue;
    manager.save_async(step, {sw::host_source("w", kSpec, std::as_bytes(std::span(w)))},
                       {.metrics = {{"loss", loss}}});
  }
  manager.close();
  std::cout << "ended after step " << step << ", w " << w[0] << ' ' << w[1] << '\n';
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    std::cerr << "usage: " << argv[0] << " FOLDER [STEPS]\n";
    return 2;
  }
  try {
    run(argv[1], argc == 3 ? std::atoll(argv[2]) : 1000);
  } catch (const std::exception& e) {
    std::cerr << "training_job: " << e.what() << '\n';
    return 1;
  }
}
