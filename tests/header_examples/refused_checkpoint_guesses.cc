// Guessed names of checkpoints and arrays that do not exist. refused_guesses_test.py compiles this.
#include <iostream>
#include <vector>

#include "shardwise/shardwise.h"

namespace sw = shardwise;

void guesses(sw::CheckpointManager& manager, sw::ShardedArray& w, sw::Devices& devices,
             std::vector<float> v, const sw::Sharding& s) {
  manager.save(1, {sw::host_source("w", v)}, {.user_data = "{}"});  // shows: user_json
  sw::SaveOptions options{.user_data = std::string("{}")};          // shows: user_json
  sw::CheckpointReader r(manager.step(1).directory);
  auto a = r.user_data();                        // shows: user_json()
  if (manager.latest()->step.valid()) return;    // shows: verify_checkpoint(step.directory).ok()
  auto m1 = sw::open_model("m.safetensors");     // shows: ModelReader(path)
  sw::import_model("m.safetensors", "run");      // shows: reshard_checkpoint(ModelReader(path),
  auto z = sw::ShardedArray::zeros(devices, s);  // shows: from_host(devices, spec, std::vector
  auto o = sw::ShardedArray::ones({4, 2}, s);    // shows: from_host(devices, spec, std::vector
  auto x1 = sw::reshard(w, s);                   // shows: w.redistribute(devices, sharding)
  auto x2 = w.reshard(s);                        // shows: redistribute(devices, sharding)
  auto x3 = w.reshard(devices, s);               // shows: redistribute(devices, sharding)
  auto r5 = r.read("w");                         // shows: read<float>(name)
  r.read("w", v.data());                         // shows: std::span(data, count)
  auto a1 = w.size();                            // shows: num_elements(shape())
  auto a2 = w.data<float>();                     // shows: to_vector<float>()
  auto a3 = w[0];                                // shows: shard(i)
  auto a4 = w.to(s);                             // shows: redistribute(devices,
  auto a5 = w.addressable_shards();              // shows: shards()
  std::cout << w;                                // shows: to_vector<float>()
  auto t1 = sw::to_string(w);                    // shows: to_string(shape())
  auto t2 = sw::to_string(s);                    // shows: x.to_string()
  auto t3 = sw::to_string(w.dtype());            // shows: name(dtype)
}

void guesses(const sw::Tensor& x) {
  auto h = x.to_host<float>();  // shows: to_vector<float>()
}
