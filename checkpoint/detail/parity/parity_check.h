#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "shardwise/checkpoint/detail/parity/parity_format.h"
#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"
#include "shardwise/storage/file.h"

namespace shardwise::detail {

/// A file of a checkpoint that has, or is to have, parity.
struct ProtectedFile {
  std::string name;
  ParityOf of;
  bool is_linked = false;

  std::string parity_name() const { return name + std::string(kParitySuffix); }
};

/// The shard files of a checkpoint, and the files that those link whose tables are loaded.
std::vector<ProtectedFile> protected_files(const StoredCheckpoint& stored);

/// Reads every byte of a parity file: both copies of its header, and the parity blocks. Gives the
/// header's layout. Throws corrupt if something is not as it was written; io.
ParityLayout check_parity_file(File& file, const std::string& path, const ParityOf& of,
                               const std::function<void(std::size_t bytes)>& read = nullptr);

}  // namespace shardwise::detail
