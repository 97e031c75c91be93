#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "shardwise/checkpoint/detail/format/manifest.h"
#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"
#include "shardwise/mend/detail/chunk_finder.h"
#include "shardwise/runtime/process/process_group.h"
#include "shardwise/storage/file.h"

// Puts files with bad chunks right, chunk by chunk, from the files of all hosts.
namespace shardwise::tiers_detail {

/// A process's copy of a shard file with bad chunks.
struct Draft {
  std::filesystem::path directory;  ///< that the copy is in
  std::int64_t file;                ///< its number in the manifest
  std::vector<std::int64_t> bad;    ///< numbers in the file's chunk table, ascending
};

/// Where chunks may be: in the fast roots that this process sees, and in the steps of the durable
/// root; empty: no such root.
struct MendingSources {
  std::vector<std::filesystem::path> fast;
  std::filesystem::path durable;
};

/// A process's request to the others: a chunk of a file, by the file's number.
struct ChunkAsk {
  std::int64_t file;
  std::uint64_t address, bytes, hash;

  bool operator==(const ChunkAsk&) const = default;
};

/// The message. decode_asks() may be given any bytes: it throws corrupt or invalid_argument unless
/// they are such a message, as it was sent, about files that there are.
Bytes encode(std::span<const ChunkAsk> asks);
std::vector<ChunkAsk> decode_asks(std::span<const std::byte> message, std::int64_t files);

struct Mended {
  /// "2 chunks of shards-00001-of-00003.h5 from rank 2's process-00002/step-00000100"
  std::vector<std::string> from;

  /// The same on all processes: a chunk that is nowhere; else empty.
  std::string problem;
};

/// Makes drafts whole, in place: bad chunks are replaced by the bytes that were written, of this
/// host, of another one, and then of the durable root. Each file is checked in full after that, and
/// is on the disk. All processes call it together, with a draft or without. Throws io if a file
/// cannot be written, cancelled if another process fails.
Mended mend(const ProcessGroup& group, FileSystem& file_system, const MendingSources& sources,
            const detail::Manifest& manifest, std::span<const Draft> drafts);

/// Where chunks are looked for.
class ChunkDonors {
 public:
  /// The file system must outlive it.
  ChunkDonors(FileSystem& file_system, const MendingSources& sources);

  mend_detail::ChunkFinder host, durable;

  /// A step of the host: "process-00003/step-00000100"; of several roots the whole path.
  std::string shown(const std::filesystem::path& step) const;

 private:
  bool is_of_one_root_;
};

/// Those of the draft's bad chunks that no donor has, described for a person. `copy` is the
/// checkpoint of the draft's file, which it has loaded.
std::vector<std::string> chunks_nowhere(ChunkDonors& donors, const detail::StoredCheckpoint& copy,
                                        const Draft& draft);

}  // namespace shardwise::tiers_detail
