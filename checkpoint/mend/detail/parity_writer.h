#pragma once

#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "shardwise/checkpoint/detail/format/manifest.h"
#include "shardwise/checkpoint/detail/parity/parity_check.h"
#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"
#include "shardwise/mend/detail/parity_file.h"
#include "shardwise/mend/detail/replacer.h"
#include "shardwise/mend/parity.h"
#include "shardwise/storage/file.h"

namespace shardwise::mend_detail {

struct ParityWriting {
  int blocks = 2;
  int threads = 0;
  ProgressFunction progress = nullptr;

  /// Shard files whose parity is to be written, with that of the files that they link; null: all.
  std::function<bool(const detail::FileEntry& file)> is_mine = nullptr;

  /// Parity files to be written again, whatever they look like.
  std::set<std::string> damaged = {};
};

/// Throws invalid_argument if there cannot be this number of parity blocks; `what` begins the
/// message.
void check_parity_blocks(const std::string& what, std::int64_t blocks);

/// Writes the parity of one file, in place of the old parity.
void put_parity(FileSystem& file_system, Replacer& replacer, const detail::ProtectedFile& file,
                std::int64_t blocks, const ParityEncoding& encoding);

/// Writes the parity that is missing or does not fit. The checkpoint is taken to be right: the
/// bytes of its shard files are not compared with their hashes.
ParityStats write_parity_files(FileSystem& file_system, const std::filesystem::path& directory,
                               const ParityWriting& writing);

}  // namespace shardwise::mend_detail
