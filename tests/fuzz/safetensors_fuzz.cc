// Safetensors: any bytes as a header are refused with an Error, or read, cover the data, and are
// printed and read again as the same. The same bytes as an index, as metadata, as a config, and as
// the objects of a checkpoint, whose aliases are read.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "fuzz/require.h"
#include "shardwise/convert/detail/aliased_tensors.h"
#include "shardwise/convert/detail/safetensors/safetensors_header.h"
#include "shardwise/convert/detail/safetensors/safetensors_index.h"
#include "shardwise/convert/detail/write/model_folder.h"
#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

/// Whether the body throws none; any other than a readable Error ends the process.
template <class Body>
bool is_taken(Body&& body) {
  try {
    body();
    return true;
  } catch (const Error& e) {
    const std::string_view message = e.what();
    require(e.code() == ErrorCode::corrupt || e.code() == ErrorCode::unsupported, "code", message);
    require(message.find('\n') == std::string_view::npos, "message of several lines", message);
    require(message.size() < 2000, "long message", message);
    return false;
  }
}

void check_header(std::string_view text, std::uint64_t data_bytes) {
  detail::SafetensorsHeader header;
  if (!is_taken([&] { header = detail::parse_header(text, data_bytes); })) return;
  std::uint64_t bytes = 0;
  for (const detail::SafetensorsEntry& tensor : header.tensors) bytes += tensor.end - tensor.begin;
  require(bytes == data_bytes, "all bytes", text);
  for (const detail::SafetensorsEntry& tensor : header.tensors) {
    if (!tensor.foreign_dtype.empty()) return;  // it is never written
  }

  const std::string printed = header_text(header.tensors, header.metadata);
  const std::string_view rest = std::string_view(printed).substr(detail::kLengthBytes);
  const detail::SafetensorsHeader again = detail::parse_header(rest, data_bytes);
  require(again.metadata == header.metadata, "metadata again", printed);
  require(header_text(again.tensors, again.metadata) == printed, "read again", printed);
}

void check_index(std::string_view text) {
  detail::WeightMap map;
  if (!is_taken([&] { map = detail::parse_index(text); })) return;
  const std::string printed = detail::index_text(map, 1);
  require(detail::parse_index(printed) == map, "index again", printed);
}

void check_metadata(std::string_view text) {
  const auto map = detail::parse_string_map(text);
  if (!map) return;
  require(detail::parse_string_map(detail::to_json(*map)) == map, "map again", text);
  const std::string user_json = detail::user_json_of(*map);
  const auto again = detail::parse_string_map(user_json, "safetensors_metadata");
  require(again == map || detail::find_value(*map, "user") || map->empty(), "user data", user_json);
  const std::string aliases = "{\"aliases\":" + detail::to_json(*map) + "}";
  require(detail::parse_aliases(aliases) == *map, "aliases", aliases);
}

/// A config.json of Hugging Face.
void check_config(std::string_view text) {
  const std::string config(text);
  if (!is_taken([&] { detail::parse_ties_embeddings(config); })) return;
  const TensorInfo tensor{"w", DType::bf16, {1}, {}, {}};
  const std::string cast = detail::with_dtype_of(config, std::span(&tensor, 1));
  require(is_taken([&] { detail::parse_ties_embeddings(cast); }), "a config", config);
}

}  // namespace
}  // namespace shardwise

/// The first two bytes are the size of the data.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 2, size - 2);
  shardwise::check_header(text, data[0] | std::uint64_t{data[1]} << 8);
  shardwise::check_index(text);
  shardwise::check_metadata(text);
  shardwise::check_config(text);
  shardwise::detail::parse_aliases(text);
  return 0;
}
