// Shuffled minibatches straight onto devices; stopped after two batches, and resumed on another
// mesh.
#include <iostream>

#include "shardwise/loader/loader.h"

namespace sw = shardwise;

namespace {

void print(const sw::Batch& batch) {
  std::cout << "batch " << batch.index << ':';
  for (const std::byte b : batch.fields[0].to_host()) std::cout << ' ' << std::to_integer<int>(b);
  std::cout << " on " << batch.fields[0].sharding().mesh().to_string() << '\n';
}

std::vector<sw::FieldPlacement> rows_over(const char* mesh) {
  return {{"id", sw::Sharding(sw::Mesh::parse(mesh), sw::PartitionSpec::parse("data"))}};
}

}  // namespace

int main() {
  sw::Devices devices(4);
  std::vector<std::byte> ids(10);
  for (int i = 0; i < 10; ++i) ids[static_cast<std::size_t>(i)] = static_cast<std::byte>(i);
  const auto source = sw::memory_source({"id", sw::DType::u8, {}}, 10, ids);

  sw::LoaderState state{.seed = 7};
  {
    sw::Loader loader(devices, source, rows_over("data=4"), {.batch_size = 3, .epochs = 2}, state);
    for (int i = 0; i < 2; ++i) print(*loader.next());
    state = loader.state();
  }
  sw::Loader resumed(devices, source, rows_over("data=2"), {.batch_size = 3, .epochs = 2},
                     sw::loader_state_from_json(sw::to_json(state)));
  while (const auto batch = resumed.next()) print(*batch);
}
