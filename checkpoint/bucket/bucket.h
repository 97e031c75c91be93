#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>

#include "shardwise/checkpoint/box_reader.h"
#include "shardwise/checkpoint/steps.h"
#include "shardwise/shard/error.h"

namespace shardwise {

struct CopyOptions {
  int requests = 16;                               ///< at a time
  std::size_t part_bytes = std::size_t{16} << 20;  ///< of one request; S3 takes 5 MiB or more
  /// A step that is there with other bytes is replaced, instead of an error.
  bool replace = false;
  /// How long a copy into a bucket may take, in seconds: later, others may collect its objects.
  std::int64_t claim_seconds = std::int64_t{7} * 86'400;
  ProgressFunction progress = nullptr;  ///< bytes copied, then read back
};

struct CopyReport {
  std::filesystem::path directory;  ///< of the copy
  std::int64_t files = 0;
  std::size_t bytes = 0;    ///< of all files
  std::size_t present = 0;  ///< of these, bytes that were there from an earlier copy
};

/// Copies a step between a folder and a bucket, `s3://bucket/prefix`, in either direction, or from
/// one to another of the same kind. `from`: the step's directory; `to`: the root. All bytes of the
/// copy are read and compared with the step's hashes before it is published, so that it is whole or
/// not there. A copy into a bucket that was killed is gone on with by the next one of the same
/// step. Nothing is done if the step is there already. Memory: requests * part_bytes, and what
/// verify_checkpoint takes.
///
/// Throws invalid_argument if `from` has no step's number; not_found; already_exists if another
/// checkpoint of that number is there; corrupt if the copy does not come out whole, as the source
/// is damaged; io, unsupported.
CopyReport copy_step(const std::filesystem::path& from, const std::filesystem::path& to,
                     const CopyOptions& options = {});

/// Removes a step of a root in a bucket, all its generations, the newest last: first a tombstone
/// takes the place of its manifest, then its objects go. False without such a step. A reader that
/// has it open gets an error. Throws io: then the step is whole or removed, and a repeat goes on.
bool remove_step(const std::filesystem::path& root, std::int64_t step);

/// Removes from a root in a bucket what dead writers and unfinished removals have left: attempts
/// whose claim is over by the store's clock, data and uploads of removed steps. Tombstones stay.
GarbageReport collect_bucket_garbage(const std::filesystem::path& root);

}  // namespace shardwise
