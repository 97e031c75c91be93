#include "testing/listed_manifest.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "testing/hand_made_checkpoint.h"

namespace shardwise {
namespace {

using namespace detail;
using Json = nlohmann::ordered_json;

Json json_of(const Dims& dims) { return std::vector<std::int64_t>(dims.begin(), dims.end()); }

Json json_of(const Box& box) {
  Json pairs = Json::array();
  for (std::size_t d = 0; d < box.rank(); ++d) pairs.push_back({box.begin(d), box.end(d)});
  return pairs;
}

Json json_of(const PieceEntry& piece) {
  return {{"box", json_of(piece.box)},
          {"file", piece.file},
          {"dataset", piece.dataset.path()},
          {"layout", piece.layout == Layout::contiguous ? "contiguous" : "chunked"},
          {"chunk", json_of(piece.chunk)},
          {"codec", piece.codec == StoredCodec::none ? "none" : "zstd"},
          {"first_chunk", piece.first_chunk}};
}

Json json_of(const TensorEntry& tensor) {
  // A mesh of no text is that of one device, and a scalar is cut by it: what has no sharding gets a
  // text that is no mesh's.
  Json json = {{"name", tensor.name},
               {"dtype", name(tensor.dtype)},
               {"shape", json_of(tensor.shape)},
               {"mesh", tensor.sharding ? tensor.sharding->mesh().to_string() : "?"},
               {"spec", tensor.sharding ? tensor.sharding->spec().to_string() : ""}};
  if (tensor.sharding && tensor.sharding->policy() != UnevenPolicy()) {
    json["policy"] = tensor.sharding->policy().to_string();
  }
  json["index"] = tensor.index;
  json["pieces"] = Json::array();
  for (const PieceEntry& piece : tensor.pieces) json["pieces"].push_back(json_of(piece));
  return json;
}

Json json_of(const FileEntry& file, bool has_decoded_hashes) {
  Json json = {{"name", file.name},
               {"bytes", file.bytes},
               {"data", {file.data_begin, file.data_end}},
               {"table",
                {{"address", file.table_address},
                 {"chunks", file.chunks},
                 {"xxh3", to_hex(file.table_hash)}}}};
  if (has_decoded_hashes) {
    json["decoded"] = {{"address", file.decoded_address}, {"xxh3", to_hex(file.decoded_hash)}};
  }
  json["structure"] = to_hex(file.structure_hash);
  return json;
}

// The values, each on a line of its own.
std::string lines_of(const Json& values) {
  std::string text;
  for (const Json& value : values) {
    text +=
        (text.empty() ? "[\n" : ",\n") + value.dump(-1, ' ', false, Json::error_handler_t::replace);
  }
  return text.empty() ? "[]" : text + "]";
}

}  // namespace

std::string print_listed_manifest(const Manifest& manifest) {
  Json head = {{"format", kFormatName}, {"version", kListedVersion}};
  if (manifest.minor != 0) head["minor"] = manifest.minor;
  head["id"] = manifest.id;
  if (manifest.step != kNoStep) head["step"] = manifest.step;
  std::string text = head.dump();
  text.back() = ',';

  Json tensors = Json::array(), files = Json::array();
  for (const TensorEntry& tensor : manifest.tensors) tensors.push_back(json_of(tensor));
  for (const FileEntry& file : manifest.files) {
    files.push_back(json_of(file, manifest.has_decoded_hashes()));
  }
  const Json index = {
      {"name", kIndexName}, {"bytes", manifest.index_bytes}, {"xxh3", to_hex(manifest.index_hash)}};
  return with_checksum(text + "\n\"user\":" + manifest.user_json +
                       ",\n\"tensors\":" + lines_of(tensors) + ",\n\"files\":" + lines_of(files) +
                       ",\n\"index\":" + index.dump());
}

}  // namespace shardwise
