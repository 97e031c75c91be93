// Guesses that do not compile, each with what its error must show: what to write.
// refused_guesses_test.py compiles this.
#include <vector>

#include "shardwise/shardwise.h"

using namespace shardwise;

void guesses(CheckpointManager& manager, const CheckpointReader& r, std::vector<float> w) {
  manager.save(1, {{"w", w}});                       // shows: host_source()
  manager.save(1, {{"w", w}}, {.user_json = "{}"});  // shows: host_source()
  ArraySpec spec{
      DType::f32, {12, 4}, Sharding()};       // shows: Sharding::replicated(Mesh::line(1), rank)
  CheckpointReader latest(manager.latest());  // shows: latest->step.directory
  CheckpointReader of_manager(manager);       // shows: of which step? latest()
  r.read("w", Box::of({12, 4}), w);           // shows: Box::whole(shape)
  auto m = r.metadata();                      // shows: user_json(), or tensor(name)
  auto source = tensor_source("w", w);        // shows: host_source(name, shape, values)
  auto step = manager.restore_latest();       // shows: with what reads
  auto gone = host_source("w", {2}, std::vector<float>(2));  // shows: ElementRange
}
