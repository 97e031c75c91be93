#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>

#include "shardwise/checkpoint/detail/write/save_plan.h"
#include "shardwise/checkpoint/detail/write/shard_file.h"
#include "shardwise/storage/file.h"

// Shard files that a resumed attempt already has.
namespace shardwise::detail {

/// Says beside a shard file that it is complete and on the disk: by a file of its name and
/// ".whole".
void note_written_file(FileSystem& file_system, const std::filesystem::path& attempt,
                       const FileEntry& file);

/// How many shard files of an attempt are noted; 0 if that cannot be seen.
std::size_t noted_files(FileSystem& file_system, const std::filesystem::path& attempt) noexcept;

/// File number `number` of the plan, if the attempt has it, noted and with the plan's pieces;
/// its tables are read and checked. Absent if it has not.
std::optional<WrittenShardFile> read_written_file(FileSystem& file_system,
                                                  const std::filesystem::path& attempt,
                                                  const SavePlan& plan, std::size_t number);

}  // namespace shardwise::detail
