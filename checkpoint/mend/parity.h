#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>

#include "shardwise/checkpoint/read_options.h"
#include "shardwise/shard/error.h"

namespace shardwise {

struct ParityOptions {
  /// How many blocks of 1 MiB of each shard file may be lost or damaged, at any place; 1 to
  /// 127. The parity of a file has as many blocks for each 255 - `blocks` of its own, or fewer.
  int blocks = 2;

  /// Writes the parity of the shard files of this writer alone (a process of the job, by its
  /// number), and of the files that they link; nothing is verified: it is for the process that has
  /// just written them. Unset: all files get parity.
  std::optional<int> writer = std::nullopt;

  int threads = 0;                      ///< 0: as many as the machine has cores
  ProgressFunction progress = nullptr;  ///< of the verification, then of the bytes read for parity
  std::shared_ptr<FileSystem> file_system = nullptr;  ///< null: posix_file_system()
};

struct ParityStats {
  std::int64_t files = 0;    ///< that have parity now: shard files, and linked ones
  std::int64_t written = 0;  ///< of these, whose parity was written or linked: others had it
  std::size_t file_bytes = 0, parity_bytes = 0;  ///< of all these files, and of their parity
  std::size_t encoded_bytes = 0;                 ///< that were read to write parity
  double seconds = 0;                            ///< that this took
};

/// Writes Reed-Solomon parity, FILE.parity, for each shard file of a checkpoint. By it,
/// repair_checkpoint() restores lost or damaged bytes of any kind: chunks, tables, the end of a
/// file that was cut off, a whole small file. Parity that is there and fits stays.
/// manifest.json and index.h5 are not covered. A linked file's parity is a link of
/// another step's parity of the file, if there is any. Damage that is close together is shared by
/// many groups of blocks, so a run of bad blocks as long as there are groups counts as one.
///
/// Verifies first, so that no damage is made lasting: throws corrupt, or io, naming the first
/// damage, and invalid_argument for a number of blocks that cannot be. Readers may use the
/// checkpoint at the same time; a parity file is whole or not there.
ParityStats write_parity(const std::filesystem::path& directory, const ParityOptions& options = {});

/// Removes the parity files of a checkpoint. Gives how many there were.
std::int64_t remove_parity(const std::filesystem::path& directory,
                           std::shared_ptr<FileSystem> file_system = nullptr);

}  // namespace shardwise
