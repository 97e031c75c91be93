// Archives of numpy's arrays: refused with an Error, or read whole.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "fuzz/require.h"
#include "shardwise/convert/model.h"
#include "shardwise/shard/error.h"
#include "testing/memory_files.h"

namespace shardwise {
namespace {

void read_all(const ModelReader& reader) {
  constexpr std::size_t kMostBytes = std::size_t{1} << 20;
  for (std::size_t t = 0; t < reader.tensors().size(); ++t) {
    const TensorInfo& info = reader.tensors()[t];
    if (info.logical_bytes > kMostBytes) continue;
    std::vector<std::byte> out(info.logical_bytes);
    reader.read(t, Box::whole(info.shape), out);
  }
}

}  // namespace
}  // namespace shardwise

/// Any bytes that are recognised.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shardwise;
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(data[i]);
  const auto files = std::make_shared<MemoryFileSystem>(MemoryFiles{{"m.npz", std::move(bytes)}});
  if (model_format("m.npz", files) != "npz") return 0;
  try {
    read_all(ModelReader("m.npz", files));
  } catch (const Error& e) {
    const std::string_view message = e.what();
    require(e.code() == ErrorCode::corrupt || e.code() == ErrorCode::unsupported, "code", message);
    require(message.find('\n') == std::string_view::npos, "message of several lines", message);
    require(message.size() < 4000, "long message", message);
  }
  return 0;
}
