#include "given.h"

#include <utility>

#include "shardwise/convert/model.h"

namespace gpt {

namespace sw = shardwise;

std::map<std::string, Given> read_all(const std::filesystem::path& path) {
  const sw::ModelReader reader(path);
  std::map<std::string, Given> all;
  for (std::size_t i = 0; i < reader.tensors().size(); ++i) {
    const sw::TensorInfo& info = reader.tensors()[i];
    Given given{info.dtype, info.shape, {}};
    given.bytes.resize(sw::num_bytes(info.shape, sw::size_bytes(info.dtype)));
    reader.read(i, sw::Box::whole(info.shape), given.bytes);
    all.emplace(info.name, std::move(given));
  }
  return all;
}

}  // namespace gpt
