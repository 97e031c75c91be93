// A job of any number of processes. It goes on where it ended, also with another number of them:
//
//   mpirun -n 4 mpi_job FOLDER      # steps 1 to 5
//   mpirun -n 3 mpi_job FOLDER      # steps 6 to 10, from what the four have saved
//
// Each process holds some rows of "w". In training, row i grows by i + 1 in every step, so that the
// state after any step is known and can be checked.
#include <iostream>
#include <span>
#include <vector>

#include "shardwise/checkpoint/manager.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/runtime/process/mpi_transport.h"
#include "shardwise/shard/box_copy.h"
#include "shardwise/shard/error.h"
using namespace shardwise;

namespace {

const Shape kShape{4096, 1000};
constexpr int kSteps = 5;

float trained(std::int64_t row, std::int64_t steps) {
  return static_cast<float>((row + 1) * steps);
}

/// Row i of `rows` grows by i + 1, `steps` times.
void train(std::vector<float>& w, const Box& rows, std::int64_t steps) {
  for (std::size_t i = 0; i < w.size(); ++i) {
    w[i] += trained(rows.begin(0) + static_cast<std::int64_t>(i) / kShape[1], steps);
  }
}

void run(const char* folder, const ProcessGroup& job) {
  CheckpointManager manager(folder, {.keep_last = 2, .group = job, .devices = job.size()});
  const Sharding by_rows(Mesh::line(job.size(), "job"), PartitionSpec::parse("job,-"));
  const Box mine = by_rows.box_at(job.rank(), kShape);
  std::vector<float> w(static_cast<std::size_t>(mine.num_elements()), 0.0f);
  std::int64_t step = 0;
  if (const auto latest = manager.latest()) {  // all processes agree on it
    const CheckpointReader reader(latest->step.directory);
    reader.read("w", mine, std::as_writable_bytes(std::span(w)));
    step = reader.step();
    std::vector<float> expected(w.size(), 0.0f);
    train(expected, mine, step);
    if (w != expected) throw Error(ErrorCode::corrupt, "what was restored is not what was saved");
    if (job.rank() == 0) std::cout << "went on after step " << step << '\n';
  }
  for (int i = 0; i < kSteps; ++i, ++step) train(w, mine, 1);

  // Asked only for boxes inside `mine`: this process writes what its device holds.
  const auto part = [&](const Box& box, std::span<std::byte> out) {
    const std::span<const std::byte> bytes = std::as_bytes(std::span(w));
    copy_box(box, sizeof(float), {bytes.data(), mine}, {out.data(), box});
  };
  const SaveStats stats =
      manager.save(step, {callback_tensor("w", {DType::f32, kShape, by_rows}, part)});
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
  const ProcessGroup job(mpi_transport());
  try {
    run(argv[1], job);
  } catch (const std::exception& e) {
    job.abort(e.what());  // ends what the others do, with this error
    std::cerr << "mpi_job: " << e.what() << '\n';
    return 1;
  }
}
