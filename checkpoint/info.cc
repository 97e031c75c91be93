#include "shardwise/checkpoint/info.h"

#include <fmt/core.h>

#include "shardwise/shard/error.h"

namespace shardwise {

std::string_view name(Codec codec) {
  switch (codec) {
    case Codec::automatic:
      return "auto";
    case Codec::zstd:
      return "zstd";
    case Codec::none:
      return "none";
  }
  return "unknown";
}

Codec parse_codec(std::string_view text) {
  for (const Codec codec : {Codec::automatic, Codec::zstd, Codec::none}) {
    if (name(codec) == text) return codec;
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("codec {:?}: it is not known; needed is auto, zstd or none", text));
}

}  // namespace shardwise
