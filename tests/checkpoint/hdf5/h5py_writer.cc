// h5py_writer FOLDER: writes FOLDER/step-00000001 with tensors of every type, shape and name that
// is odd, and, for h5py_reader.py to compare, a file per tensor with the bytes of the whole array.

#include <cstdio>
#include <exception>
#include <fstream>
#include <nlohmann/json.hpp>

#include "testing/host_tensor.h"
#include "testing/temp_dir.h"

namespace {

using namespace shardwise;

/// All 256 elements that a float of a byte can be.
HostTensor every_value(DType dtype) {
  HostTensor tensor = host_tensor(std::string(name(dtype)) + "/all", dtype, {256}, "2", "0");
  auto bytes = std::make_shared<std::vector<std::byte>>(256);
  for (std::size_t i = 0; i < bytes->size(); ++i) (*bytes)[i] = static_cast<std::byte>(i);
  tensor.data = bytes;
  return tensor;
}

std::vector<HostTensor> tensors() {
  std::vector<HostTensor> made;
  for (const DType dtype : all_dtypes()) {
    const std::string type(name(dtype));
    made.push_back(host_tensor(type + "/noise", dtype, {401, 513}, "data=4,model=2", "data,model"));
    made.push_back(host_tensor(type + "/ramp", dtype, {3, 233, 301}, "data=4,model=2", "-,-,model",
                               Values::ramp));
    made.push_back(host_tensor(type + "/small", dtype, {7, 5}, "data=4,model=2", "model,-"));
    made.push_back(host_tensor(type + "/scalar", dtype, {}, "data=4,model=2", ""));
    if (size_bytes(dtype) == 1 && !is_computed(dtype)) made.push_back(every_value(dtype));
    made.push_back(host_tensor(type + "/none", dtype, {0, 3}, "data=4,model=2", "data,-"));
  }
  for (const char* odd :
       {"a", "a/b", "a/b/c", "./..//x%", "with space", "ünï/çødé", "/abs", "end/"}) {
    made.push_back(host_tensor(odd, DType::i32, {9, 3}, "data=4,model=2", "data,-"));
  }
  // Its second chunk reaches over the edge.
  made.push_back(host_tensor("ragged", DType::i32, {300001}, "data=4,model=2", "-", Values::ramp));
  // Enough in one group that it is no longer a short list.
  for (int i = 0; i < 40; ++i) {
    const DType dtype = all_dtypes()[static_cast<std::size_t>(i) % all_dtypes().size()];
    made.push_back(host_tensor("many/" + std::to_string(i), dtype, {i % 3 + 1, 2}, "data=4,model=2",
                               "-,model", Values::noise, static_cast<std::uint64_t>(i)));
  }
  return made;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  try {
    const std::filesystem::path folder = argv[1];
    const std::vector<HostTensor> all = tensors();
    std::vector<TensorSource> sources = sources_of(all);
    sources.front().sharding =
        Sharding(Mesh::parse("data=4,model=2"), PartitionSpec::parse("data,model"),
                 UnevenPolicy::balanced());
    CheckpointManager(folder).save(1, std::move(sources), {.writers = 3});
    nlohmann::json expected;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const std::string file = std::to_string(i) + ".bin";
      write_file(folder / file, *all[i].data);
      const Shape& shape = all[i].spec.shape;
      expected[all[i].name] = {{"file", file},
                               {"dtype", name(all[i].spec.dtype)},
                               {"shape", std::vector<std::int64_t>(shape.begin(), shape.end())}};
    }
    std::ofstream(folder / "expected.json") << expected;
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "h5py_writer: %s\n", e.what());
    return 1;
  }
}
