// Guesses of a job's reads after its manager's header alone. refused_guesses_test.py
// compiles this.
#include <vector>

#include "shardwise/jobs/manager.h"

using namespace shardwise;

void guesses(CheckpointManager& manager, std::vector<float> w) {
  CheckpointReader r(manager.latest()->step.directory);
  w = r.read<float>("w");
  r.read("w", w);
  r.read("w", Box{{0, 0}, {12, 4}}, std::as_writable_bytes(std::span(w)));
  r.read("w", Box::whole(r.tensor("w").shape), std::as_writable_bytes(std::span(w)));
  manager.restore_latest([&](const CheckpointReader& reader) { reader.read("w", w); });
  CheckpointReader latest(manager.latest());  // shows: latest->step.directory
  CheckpointReader of_manager(manager);       // shows: which step? latest()
  auto m = r.metadata();                      // shows: user_json(), or tensor(name)
}
