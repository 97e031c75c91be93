// A job of any number of processes. It continues where it stopped, also with another number of
// them:
//
//   mpirun -n 4 mpi_job FOLDER      # steps 1 to 5
//   mpirun -n 3 mpi_job FOLDER      # steps 6 to 10, from the checkpoint of the four
//
// Each process holds some rows of "w", and all of "b". In training, row i of w and element i of b
// grow by i + 1 in every step, so that the state after any step is known and can be checked.
#include <iostream>
#include <span>
#include <vector>

#include "shardwise/checkpoint/reader.h"
#include "shardwise/jobs/manager.h"
#include "shardwise/runtime/process/mpi_transport.h"
#include "shardwise/shard/error.h"
namespace sw = shardwise;

namespace {

const sw::Shape kShape{4096, 1000};
constexpr int kSteps = 5;

float trained(std::int64_t row, std::int64_t steps) {
  return static_cast<float>((row + 1) * steps);
}

/// Row i of `rows` grows by i + 1, `steps` times.
void train(std::vector<float>& w, const sw::Box& rows, std::int64_t steps) {
  for (std::size_t i = 0; i < w.size(); ++i) {
    w[i] += trained(rows.begin(0) + static_cast<std::int64_t>(i) / kShape[1], steps);
  }
}

void train(std::vector<float>& b, std::int64_t steps) {
  for (std::size_t i = 0; i < b.size(); ++i) b[i] += trained(static_cast<std::int64_t>(i), steps);
}

void run(const char* folder, const sw::ProcessGroup& job) {
  sw::CheckpointManager manager(folder, {.keep = {.last = 2}, .group = job, .devices = job.size()});
  const sw::Mesh mesh = sw::Mesh::line(job.size(), "job");
  const sw::ArraySpec w_spec{sw::DType::f32, kShape,
                             sw::Sharding(mesh, sw::PartitionSpec::parse("job,-"))};
  const sw::ArraySpec b_spec{sw::DType::f32, {kShape[1]}, sw::Sharding::replicated(mesh, 1)};
  const sw::Box mine = w_spec.sharding.box_at(job.rank(), kShape),
                whole = sw::Box::whole(b_spec.shape);
  std::vector<float> w(static_cast<std::size_t>(mine.num_elements()), 0.0f);
  std::vector<float> b(static_cast<std::size_t>(whole.num_elements()), 0.0f);
  std::int64_t step = 0;
  if (const auto latest = manager.latest()) {  // all processes agree on it
    const sw::CheckpointReader reader(latest->step.directory);
    sw::Devices devices(job.size(), {.group = job.duplicate()});
    const std::vector<sw::TensorRequest> requests{{"w", w_spec}, {"b", b_spec}};
    const std::vector<sw::ShardedArray> arrays = reader.restore(devices, requests);
    arrays[0].read(mine, std::as_writable_bytes(std::span(w)));
    arrays[1].read(whole, std::as_writable_bytes(std::span(b)));
    step = reader.step();
    std::vector<float> w_needed(w.size(), 0.0f), b_needed(b.size(), 0.0f);
    train(w_needed, mine, step);
    train(b_needed, step);
    if (w != w_needed || b != b_needed) {
      throw sw::Error(sw::ErrorCode::corrupt, "the restored tensor differs from the saved one");
    }
    if (job.rank() == 0) std::cout << "went on after step " << step << '\n';
  }
  for (int i = 0; i < kSteps; ++i, ++step) {
    train(w, mine, 1);
    train(b, 1);
  }
  const sw::SaveStats stats = manager.save(
      step, {shards_source("w", w_spec, {{mine, w}}), shards_source("b", b_spec, {{whole, b}})});
  if (job.rank() == 0) {
    std::cout << job.size() << " processes saved step " << step << ", " << stats.logical_bytes
              << " bytes\n";
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: mpirun -n PROCESSES " << argv[0] << " FOLDER\n";
    return 2;
  }
  const sw::ProcessGroup job(sw::mpi_transport());
  try {
    run(argv[1], job);
  } catch (const std::exception& e) {
    job.abort(e.what());  // ends the other processes with this error
    std::cerr << "mpi_job: " << e.what() << '\n';
    return 1;
  }
}
