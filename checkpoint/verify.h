#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shardwise/checkpoint/read_options.h"
#include "shardwise/shard/box.h"
#include "shardwise/shard/error.h"

namespace shardwise {

/// One problem: its file and place, and for a chunk its tensor.
struct Damage {
  std::string file = {};     ///< name within the checkpoint
  std::string message = {};  ///< one line: what, where, found, needed
  std::string tensor = {};   ///< empty if it is not about one tensor
  std::int64_t chunk = -1;   ///< record number in the file's chunk table
  Box box = {};              ///< the global elements that cannot be trusted, if tensor is set
};

struct VerifyReport {
  /// Problems that the bytes prove.
  std::vector<Damage> damage;

  /// Places that could not be read: no rights, no free descriptor, a bad place on the disk, a
  /// server that does not answer. Nothing is known of them; the checkpoint may be whole.
  std::vector<Damage> unread;

  std::int64_t chunks = 0;  ///< read
  std::size_t bytes = 0;    ///< read

  /// Shard files, linked ones among them, that have parity which is as it was written, and how many
  /// lost blocks each of these survives at least.
  std::int64_t parity_files = 0, parity_blocks = 0;

  /// Every value, and every byte that says where it is, was read and is as it was written.
  bool ok() const { return damage.empty() && unread.empty(); }
};

/// Reads all that a checkpoint uses: checksum of the manifest, sizes, HDF5 structure, chunk tables,
/// every chunk, the padding between chunks, every byte of parity files, which nothing else depends
/// on, and the index, which must equal, byte for byte, the one that the writer makes of the
/// manifest. Checks that the pieces cover every tensor exactly once, and that there is no other
/// file. Damage is reported, not thrown, and does not end the search, except for the manifest's:
/// nothing else describes the other bytes. Unreadable places are reported apart from damage: delete
/// nothing because of them. HDF5 opens no file, and no link is followed. In a linked file, the
/// chunks that only other steps use and the gaps around them are not read: no value depends on
/// them. This proves integrity, not authenticity: who can write the files can make their hashes
/// right again. Throws not_found if there is no checkpoint, or it is removed during the call;
/// unsupported; and io if its directory or manifest cannot be read, or the directory changes again
/// and again while it is read.
VerifyReport verify_checkpoint(const std::filesystem::path& directory,
                               const ReadOptions& options = {});

/// One line, and one for each damage: "1 damaged (12 chunks, 3.00 MiB read)\n  shard..: ..".
std::string to_string(const VerifyReport& report);

}  // namespace shardwise
