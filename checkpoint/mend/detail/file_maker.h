#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shardwise/checkpoint/detail/format/manifest.h"
#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"
#include "shardwise/mend/detail/replacer.h"
#include "shardwise/storage/file.h"

namespace shardwise::mend_detail {

/// A shard file that a checkpoint must have, as its manifest or the shard file that links it says.
struct WantedFile {
  detail::FileEntry entry;
  std::optional<detail::LinkedFile> linked = {};
};

/// Makes files of a damaged checkpoint again, from others. A file is made under a hidden name,
/// synced, checked, and then takes the place of the damaged one in one step; nothing of that one
/// that is right is lost. Each function gives the path of the source of the file; without a source,
/// `why_not` says so in one clause. They throw if an operation fails.
/// Thread-compatible.
class FileMaker {
 public:
  /// The file system must outlive it.
  FileMaker(FileSystem& file_system, std::filesystem::path directory,
            std::vector<std::filesystem::path> checkpoints);

  /// HDF5's own bytes and tables are those of the file that was wanted. Each chunk is right if it
  /// is right in the damaged file or in the one that this is made from.
  std::optional<std::string> make_shard_file(const WantedFile& wanted, std::string& why_not);

  /// The same from the file as its parity restores it: reading fails if that cannot be.
  bool make_shard_file(const WantedFile& wanted, std::shared_ptr<File> restored,
                       std::string& why_not);

  std::optional<std::string> make_index(const detail::Manifest& manifest, std::string& why_not);

  /// Takes a manifest that names a shard file, or else the index, that is here.
  std::optional<std::string> make_manifest(std::string& why_not);

  /// Removes the hidden files of repairs that were cut short.
  void remove_leftovers() { replacer_.remove_leftovers(); }

 private:
  struct Described;

  std::vector<std::filesystem::path> paths_of(const WantedFile& wanted);
  static Described described(std::shared_ptr<File> file, const std::filesystem::path& path,
                             const WantedFile& wanted);
  void put_shard_file(Described from, const WantedFile& wanted);
  void copy_chunks(Described& from, File* damaged, File& to);
  bool is_of_this_checkpoint(const detail::Manifest& manifest);
  std::unique_ptr<File> open_if_there(const std::filesystem::path& path);

  FileSystem& file_system_;
  const std::filesystem::path directory_;
  Replacer replacer_;
  const std::vector<std::filesystem::path> checkpoints_;
};

}  // namespace shardwise::mend_detail
