#include "given.h"

#include <utility>

#include "shardwise/convert/model.h"

namespace gpt {

using namespace shardwise;

std::map<std::string, Given> read_all(const std::filesystem::path& path) {
  const ModelReader reader(path);
  std::map<std::string, Given> all;
  for (std::size_t i = 0; i < reader.tensors().size(); ++i) {
    const TensorInfo& info = reader.tensors()[i];
    Given given{info.dtype, info.shape, {}};
    given.bytes.resize(num_bytes(info.shape, size_bytes(info.dtype)));
    reader.read(i, Box::whole(info.shape), given.bytes);
    all.emplace(info.name, std::move(given));
  }
  return all;
}

}  // namespace gpt
