#pragma once

#include <filesystem>
#include <functional>
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

/// A file, or a folder of files, that is being written: a StagedOutput that checks the output it
/// replaces. Thread-compatible.
class NewTarget {
 public:
  /// True for a path in a folder that an export writes, so that the folder may be replaced.
  using IsExported = std::function<bool(const std::filesystem::path& path)>;

  /// Makes the hidden folder. A folder is replaced only if all its entries pass `is_exported`, by
  /// default is_exported_name(). Throws already_exists, not_found if the parent folder does not
  /// exist, invalid_argument if the parent is a checkpoint's.
  NewTarget(FileSystem& file_system, const std::filesystem::path& target, TargetKind kind,
            Existing existing, IsExported is_exported = {});

  /// True if Existing::skip has nothing to write: the target exists, and `check` accepts it. Throws
  /// already_exists with the reason if `check` throws; io, not_found as the constructor.
  static bool skips(FileSystem& file_system, const std::filesystem::path& target,
                    const std::function<void()>& check);

  /// A new file; `name` is its name if the target is a folder.
  std::unique_ptr<File> create(const std::string& name);

  /// The place where the folder is made.
  const std::filesystem::path& place() const { return staged_->place(); }

  /// Renames it to the target, and removes the old one. Requires that all its files and
  /// folders are synced.
  void publish();

 private:
  void check_replaceable() const;

  FileSystem& file_system_;
  const std::filesystem::path given_;
  const std::filesystem::path target_;
  const TargetKind kind_;
  const IsExported is_exported_;
  bool replaces_ = false;
  std::optional<StagedOutput> staged_;
};

}  // namespace shardwise::detail
