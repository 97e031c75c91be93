#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "shardwise/storage/file.h"

namespace shardwise::mend_detail {

/// Puts files into a committed checkpoint. Each is made under a hidden name, synced, and then takes
/// the place of the file with its name in one step. Thread-compatible.
class Replacer {
 public:
  using Fill = std::function<void(File& file)>;

  /// The file system must outlive it.
  Replacer(FileSystem& file_system, std::filesystem::path directory);

  /// Throws the errors of `fill` and the file system; then nothing has changed. not_found if the
  /// checkpoint has been removed or replaced since. Others may put and remove files of this name at
  /// the same time: `fill` may be called again then.
  void put(const std::string& name, const Fill& fill);
  void put(const std::string& name, std::span<const std::byte> bytes);

  /// Removes the hidden files of processes that died before the end of a put().
  void remove_leftovers();

  const std::filesystem::path& directory() const { return directory_; }

 private:
  bool take_place(const std::filesystem::path& hidden, const std::filesystem::path& place,
                  bool is_last);
  void remove_or_leave(const std::filesystem::path& hidden);

  FileSystem& file_system_;
  const std::filesystem::path directory_;
  const std::unique_ptr<Directory> opened_;  // says whether its path still leads to it
};

}  // namespace shardwise::mend_detail
