// Shuffled minibatches straight onto devices; stopped after two batches, and resumed on another
// mesh.
#include <iostream>

#include "shardwise/loader/loader.h"

using namespace shardwise;

namespace {

void print(const Batch& batch) {
  std::cout << "batch " << batch.index << ':';
  for (const std::byte b : batch.fields[0].to_host()) std::cout << ' ' << std::to_integer<int>(b);
  std::cout << " on " << batch.fields[0].sharding().mesh().to_string() << '\n';
}

std::vector<FieldPlacement> rows_over(const char* mesh) {
  return {{"id", Sharding(Mesh::parse(mesh), PartitionSpec::parse("data"))}};
}

}  // namespace

int main() {
  Devices devices(4);
  std::vector<std::byte> ids(10);
  for (int i = 0; i < 10; ++i) ids[static_cast<std::size_t>(i)] = static_cast<std::byte>(i);
  const auto source = memory_source({"id", DType::u8, {}}, 10, ids);

  LoaderState state{.seed = 7};
  {
    Loader loader(devices, source, rows_over("data=4"), {.batch_size = 3, .epochs = 2}, state);
    for (int i = 0; i < 2; ++i) print(*loader.next());
    state = loader.state();
  }
  Loader resumed(devices, source, rows_over("data=2"), {.batch_size = 3, .epochs = 2},
                 loader_state_from_json(to_json(state)));
  while (const auto batch = resumed.next()) print(*batch);
}
