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

/// One thing that is wrong: in which file, where, and for a chunk of which tensor.
struct Damage {
  std::string file = {};     ///< name within the checkpoint
  std::string message = {};  ///< one line: what, where, found, needed
  std::string tensor = {};   ///< empty if it is not about one tensor
  std::int64_t chunk = -1;   ///< record number in the file's chunk table
  Box box = {};              ///< the global elements that cannot be trusted, if tensor is set
};

struct VerifyReport {
  /// What the bytes prove to be wrong.
  std::vector<Damage> damage;

  /// What could not be read: no rights, no free descriptor, a bad place on the disk, a server that
  /// does not answer. Nothing is known of it; the checkpoint may be whole.
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
/// every chunk, the padding between them, and the index, which must be, byte for byte, what the
/// writer makes of the manifest; checks that
/// the pieces cover every tensor exactly once, and that there is no other file; every byte of
/// parity files, which nothing else depends on, is checked, too. Damage is reported, not thrown,
/// and does not end the search, except for the manifest's: nothing else says what the other bytes
/// should be. So is what cannot be read, apart from damage: delete nothing because of it. HDF5
/// opens no file, and no link is followed. Of a linked file, the chunks that only
/// other steps use and the gaps beside them are not read: no value depends on them. This proves
/// integrity, not authenticity: who can write the files can make their hashes right again. Throws
/// not_found if there is no checkpoint, or it is removed meanwhile; unsupported; and io if its
/// directory or manifest cannot be read, or the directory changes again and again while it is read.
VerifyReport verify_checkpoint(const std::filesystem::path& directory,
                               const ReadOptions& options = {});

/// One line, and one for each damage: "1 damaged (12 chunks, 3.00 MiB read)\n  shard..: ..".
std::string to_string(const VerifyReport& report);

struct RepairOptions {
  /// Where good bytes may be, beside the other steps of the checkpoint's root: other copies of the
  /// checkpoint, such as a backup, or roots that have some, such as a peer's.
  std::vector<std::filesystem::path> from = {};

  int threads = 0;  ///< of the verifications; 0: as many as the machine has cores
  ProgressFunction progress = nullptr;                ///< of the verifications, one after the other
  std::shared_ptr<FileSystem> file_system = nullptr;  ///< null: posix_file_system()
};

/// What was wrong and has been made right.
struct Repaired {
  Damage damage = {};     ///< as it was found
  std::string from = {};  ///< the path of what it was made from
};

struct RepairReport {
  std::vector<Repaired> repaired;

  /// A verification after all repairs. Each message also says why that could not be repaired.
  VerifyReport left;

  /// What damage has left of no tensor to be read: each box of a chunk that is damaged still, or of
  /// a piece whose file cannot be read any more. Sorted by tensor. If the manifest is damaged
  /// still, nobody knows, and it is empty.
  struct Lost {
    std::string tensor;
    Box box;
  };
  std::vector<Lost> lost;

  /// Every value is as it was written: see VerifyReport::ok().
  bool ok() const { return left.ok(); }
};

/// The same, with what was repaired and what is lost.
std::string to_string(const RepairReport& repair);

/// Verifies a checkpoint and repairs what is damaged.
///
/// A chunk whose stored bytes are wrong, or that the disk cannot read, gets the very bytes that
/// were stored, in place, from a chunk with the same elements of another step of the root or of
/// what `from` names: as they are stored there or, if they are coded or cut in another way there,
/// coded again. Only bytes that have all hashes of the chunk are written. A file with several names
/// (a chunk that steps share) is repaired for all of them.
///
/// A file that is missing, has another size, or whose tables, HDF5's own bytes or padding are wrong
/// or cannot be read is made again from a file with the same description, and then takes the place
/// of the damaged one, whose right chunks it keeps. index.h5 is made of the manifest; the manifest
/// is that of a copy which names the shard files that are here. If steps share the file, the others
/// keep the damaged one until they are repaired. A file that is no part of the checkpoint stays.
///
/// What no other checkpoint has is made of parity (write_parity), if the file has some that is
/// enough. Parity that is damaged is written anew when its shard file is right.
///
/// Nothing else is changed. A repair that ends at any instant leaves each chunk and each file
/// damaged or repaired; its readers find it so, too. What cannot be repaired is reported, not
/// thrown. Throws as verify_checkpoint does, and invalid_argument if `from` names what has no
/// checkpoint.
RepairReport repair_checkpoint(const std::filesystem::path& directory,
                               const RepairOptions& options = {});

struct ParityOptions {
  /// How many blocks of 1 MiB of each shard file may be lost or damaged, at any place; 1 to
  /// 127. The parity of a file has as many blocks for each 255 - `blocks` of its own, or fewer.
  int blocks = 2;

  /// Writes the parity of the shard files of this writer alone (a process of the job, by its
  /// number), and of what they link; nothing is verified: it is for the process that has just
  /// written them. Unset: of all files.
  std::optional<int> writer = std::nullopt;

  int threads = 0;                      ///< 0: as many as the machine has cores
  ProgressFunction progress = nullptr;  ///< of the verification, then of what is read for parity
  std::shared_ptr<FileSystem> file_system = nullptr;  ///< null: posix_file_system()
};

struct ParityStats {
  std::int64_t files = 0;    ///< that have parity now: shard files, and linked ones
  std::int64_t written = 0;  ///< of these, whose parity was written or linked: others had it
  std::size_t file_bytes = 0, parity_bytes = 0;  ///< of all these files, and of their parity
  std::size_t encoded_bytes = 0;                 ///< that were read to write parity
  double seconds = 0;                            ///< that this took
};

/// Writes Reed-Solomon parity beside each shard file of a checkpoint, FILE.parity, from which
/// repair_checkpoint() can make lost or damaged bytes again, whatever they are: chunks, tables, the
/// end of a file that was cut off, a whole small file. Parity that is there and fits stays.
/// manifest.json and index.h5 are not covered. A linked file's parity is a link of what another
/// step has for it, if there is any. Damage that is close together is shared by many groups of
/// blocks, so a run of bad blocks as long as there are groups counts as one.
///
/// Verifies first, so that no damage is made lasting: throws corrupt, or io, naming the first
/// damage, and invalid_argument for a number of blocks that cannot be. Readers may use the
/// checkpoint meanwhile; a parity file is whole or not there.
ParityStats write_parity(const std::filesystem::path& directory, const ParityOptions& options = {});

/// Removes the parity files of a checkpoint. Gives how many there were.
std::int64_t remove_parity(const std::filesystem::path& directory,
                           std::shared_ptr<FileSystem> file_system = nullptr);

}  // namespace shardwise
