#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/checkpoint/save.h"
#include "shardwise/checkpoint/staged_output.h"
#include "shardwise/storage/file.h"

namespace shardwise::detail {

enum class TargetKind { file, folder };

/// A file, or a folder of files, in the making: a StagedOutput that checks what it replaces.
/// Thread-compatible.
class NewTarget {
 public:
  /// Makes the hidden folder. A folder that is replaced holds nothing but what an export writes;
  /// `with_config`: it may hold the files of a ModelFolder, too, as the new one does. Throws
  /// already_exists, not_found if the folder above is not there, invalid_argument if that is a
  /// checkpoint's.
  NewTarget(FileSystem& file_system, const std::filesystem::path& target, TargetKind kind,
            Existing existing, bool with_config = false);

  /// Whether there is something under that name. Throws io, not_found as the constructor.
  static bool is_there(FileSystem& file_system, const std::filesystem::path& target);

  /// A new file; `name` is its name if the target is a folder.
  std::unique_ptr<File> create(const std::string& name);

  /// Gives it its name; what had that name is removed. Requires that all files are synced.
  void publish();

 private:
  void check_replaceable() const;

  FileSystem& file_system_;
  const std::filesystem::path given_;
  const std::filesystem::path target_;
  const TargetKind kind_;
  const bool with_config_;
  bool replaces_ = false;
  std::optional<StagedOutput> staged_;
};

}  // namespace shardwise::detail
