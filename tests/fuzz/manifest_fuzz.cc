// Manifests: any bytes are read or refused with an Error, as they are and with their checksum made
// right (else hardly any would get further); a manifest that was read is printed and read again as
// the same.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "fuzz/require.h"
#include "shardwise/checkpoint/detail/format/manifest.h"
#include "shardwise/checkpoint/detail/format/metrics.h"
#include "shardwise/shard/error.h"
#include "testing/hand_made_checkpoint.h"

namespace shardwise {
namespace {

// Meshes of a thousand devices do for all that can go wrong.
bool quick_to_place(const detail::Manifest& manifest) {
  if (manifest.files.size() > 8) return false;
  for (const detail::TensorEntry& tensor : manifest.tensors) {
    if (tensor.sharding && tensor.sharding->mesh().size() > 1000) return false;
  }
  return true;
}

void check(std::string_view text) {
  detail::Manifest manifest;
  try {
    manifest = detail::parse_manifest(text, "manifest");
  } catch (const Error& e) {
    const std::string_view message = e.what();
    require(e.code() == ErrorCode::corrupt || e.code() == ErrorCode::unsupported, "code", message);
    require(message.find('\n') == std::string_view::npos, "message of several lines", message);
    return;
  }
  static_cast<void>(detail::metrics_of(manifest.objects_json));
  const std::string printed = print_manifest(manifest);
  const detail::Manifest again = detail::parse_manifest(printed, "printed");
  require(again == manifest, "read again", printed);
  require(print_manifest(again) == printed, "printed again",
          printed);  // shardings are compared by place

  // Calls that a reader makes for a piece that passed the checks.
  for (const detail::TensorEntry& tensor : manifest.tensors) {
    for (const detail::PieceEntry& piece : tensor.pieces) {
      const Box last = chunk_box(piece, num_chunks(piece) - 1);
      require(!last.empty() && piece.box.contains(last), "last chunk", printed);
    }
  }
  if (!quick_to_place(manifest)) return;
  place_pieces(manifest);
  for (const detail::TensorEntry& tensor : manifest.tensors) {
    for (const detail::PieceEntry& piece : tensor.pieces) {
      const bool fits = !piece.box.empty() && Box::whole(tensor.shape).contains(piece.box);
      require(fits, "placed piece", printed);
    }
  }
}

}  // namespace
}  // namespace shardwise

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  shardwise::check(text);
  shardwise::check(shardwise::with_checksum(text));
  return 0;
}
