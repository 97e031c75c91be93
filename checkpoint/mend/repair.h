#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "shardwise/checkpoint/read_options.h"
#include "shardwise/checkpoint/verify.h"
#include "shardwise/shard/box.h"
#include "shardwise/shard/error.h"

namespace shardwise {

struct RepairOptions {
  /// More sources of good bytes than the other steps of the checkpoint's root: other copies of the
  /// checkpoint, such as a backup, or roots that have some, such as a peer's.
  std::vector<std::filesystem::path> from = {};

  int threads = 0;  ///< of the verifications; 0: as many as the machine has cores
  ProgressFunction progress = nullptr;                ///< of the verifications, one after the other
  std::shared_ptr<FileSystem> file_system = nullptr;  ///< null: posix_file_system()
};

/// Damage that has been repaired.
struct Repaired {
  Damage damage = {};     ///< as it was found
  std::string from = {};  ///< the path of its source
};

struct RepairReport {
  std::vector<Repaired> repaired;

  /// A verification after all repairs. Each message also says why that could not be repaired.
  VerifyReport left;

  /// The boxes that cannot be read: each of a chunk that is damaged still, or of a piece whose file
  /// cannot be read any more. Sorted by tensor. If the manifest is damaged
  /// still, nobody knows, and it is empty.
  struct Lost {
    std::string tensor;
    Box box;
  };
  std::vector<Lost> lost;

  /// Every value is as it was written: see VerifyReport::ok().
  bool ok() const { return left.ok(); }
};

/// The same, with the repairs and the losses.
std::string to_string(const RepairReport& repair);

/// Verifies a checkpoint and repairs its damage.
///
/// A chunk whose stored bytes are wrong, or that the disk cannot read, gets the very bytes that
/// were stored, in place, from a chunk with the same elements of another step of the root or of
/// a checkpoint or root in `from`: as they are stored there or, if they are coded or cut in another
/// way there, coded again. Only bytes that have all hashes of the chunk are written. A file with
/// several names (a chunk that steps share) is repaired for all of them.
///
/// A file that is missing, has another size, or whose tables, HDF5's own bytes or padding are wrong
/// or cannot be read is made again from a file with the same description, and then takes the place
/// of the damaged one, whose right chunks it keeps. index.h5 is made of the manifest; the manifest
/// is that of a copy which names the shard files that are here. If steps share the file, the others
/// keep the damaged one until they are repaired. A file that is no part of the checkpoint stays.
///
/// Bytes that no other checkpoint has are made of parity (write_parity), if the file has enough of
/// it. Damaged parity is written again when its shard file is right.
///
/// Nothing else is changed. A repair that ends at any instant leaves each chunk and each file
/// damaged or repaired; its readers find it so, too. Damage that cannot be repaired is
/// reported, not thrown. Throws as verify_checkpoint does, and invalid_argument if a path in `from`
/// has no checkpoint.
RepairReport repair_checkpoint(const std::filesystem::path& directory,
                               const RepairOptions& options = {});

}  // namespace shardwise
