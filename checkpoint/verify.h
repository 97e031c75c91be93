#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "shardwise/checkpoint/read_options.h"
#include "shardwise/shard/box.h"

namespace shardwise {

/// One thing that is wrong: in which file, where, and for a chunk of which tensor.
struct Damage {
  std::string file = {};     ///< name within the checkpoint
  std::string message = {};  ///< one line: what, where, found, needed
  std::string tensor = {};   ///< empty where it is not about one tensor
  std::int64_t chunk = -1;   ///< record number in the file's chunk table
  Box box = {};              ///< the global elements that cannot be trusted, where tensor is set
};

struct VerifyReport {
  std::vector<Damage> damage;  ///< empty: every byte of the checkpoint is as it was written
  std::int64_t chunks = 0;     ///< read
  std::size_t bytes = 0;       ///< read
  bool ok() const { return damage.empty(); }
};

/// Reads every byte of a checkpoint: checksum of the manifest, sizes, HDF5 structure, chunk tables,
/// every chunk, the padding between them, the index and each of its mappings; checks that the
/// pieces cover every tensor exactly once, and that no other file lies there. Damage is reported,
/// not thrown, and does not end the search, except for the manifest's: nothing else says what the
/// other bytes should be. What the disk cannot read is damage, too. HDF5 opens the index only where
/// its hash is right. This proves integrity, not authenticity: who can write the files can make
/// their hashes right again. Throws not_found where there is no checkpoint, or it is removed
/// meanwhile, unsupported, and io where its directory or manifest cannot be read.
VerifyReport verify_checkpoint(const std::filesystem::path& directory, ReadOptions options = {});

}  // namespace shardwise
