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

/// A file, or a folder of files, in the making: a StagedOutput that checks what it replaces.
/// Thread-compatible.
class NewTarget {
 public:
  /// Whether something in a folder is what an export writes, so that the folder may be replaced.
  using IsExported = std::function<bool(const std::filesystem::path& path)>;

  /// Makes the hidden folder. A folder that is replaced holds nothing but what an export writes; by
  /// default: files that is_exported_name() knows. Throws already_exists, not_found if the folder
  /// above is not there, invalid_argument if that is a checkpoint's.
  NewTarget(FileSystem& file_system, const std::filesystem::path& target, TargetKind kind,
            Existing existing, IsExported is_exported = {});

  /// Whether Existing::skip has nothing to write: something is there, and `check` accepts it.
  /// Throws already_exists with the reason if `check` throws; io, not_found as the constructor.
  static bool skips(FileSystem& file_system, const std::filesystem::path& target,
                    const std::function<void()>& check);

  /// A new file; `name` is its name if the target is a folder.
  std::unique_ptr<File> create(const std::string& name);

  /// Where a folder is made.
  const std::filesystem::path& place() const { return staged_->place(); }

  /// Gives it its name; what had that name is removed. Requires that all files are synced, and all
  /// folders in it.
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
