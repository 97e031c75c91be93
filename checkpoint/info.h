#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/shard/dtype.h"
#include "shardwise/shard/sharding.h"

namespace shardwise {

/// How chunks are stored. Any reader reads any of them.
enum class Codec {
  /// As `zstd` for tensors of which a sample shrinks; in a save of more than 64 MiB chunks are
  /// stored as they are while the disk waits for data: hardly slower than `none`, whatever the
  /// disk. Which chunks those are depends on time; the others give the same bytes on every run.
  automatic,

  zstd,  ///< byte shuffle, then zstd; chunks that do not shrink are stored as they are
  none,
};

/// "auto", "zstd", "none"; parse_codec throws invalid_argument listing them.
std::string_view name(Codec codec);
Codec parse_codec(std::string_view text);

/// One tensor of a checkpoint, or of another BoxReader.
struct TensorInfo {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;

  /// How the writer had it cut; Mesh::parse, PartitionSpec::parse, UnevenPolicy::parse. An empty
  /// mesh: not known.
  std::string mesh = {}, spec = {}, policy = "ceil";

  // Of a checkpoint's. Pieces, chunks and stored bytes are 0, not known, of one with more than 64
  // shard files, as only those are opened that are read.
  std::int64_t pieces = 0;
  std::int64_t chunks = 0;
  std::size_t logical_bytes = 0;
  std::size_t stored_bytes = 0;
};

/// How far a save, restore, verify or reshard has come.
struct Progress {
  std::size_t done_bytes = 0;  ///< logical bytes
  std::size_t total_bytes = 0;
};

/// Called on any thread, one call at a time, now and then. What it throws ends the work with that
/// exception.
using ProgressFunction = std::function<void(const Progress&)>;

}  // namespace shardwise
