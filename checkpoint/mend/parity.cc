#include "shardwise/mend/parity.h"

#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"
#include "shardwise/checkpoint/detail/root/marks/pin.h"
#include "shardwise/checkpoint/verify.h"
#include "shardwise/mend/detail/parity_writer.h"
#include "shardwise/mend/detail/replacer.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/file.h"

namespace shardwise {

namespace fs = std::filesystem;

ParityStats write_parity(const fs::path& directory, const ParityOptions& options) {
  const std::string what = fmt::format("write the parity of {}", directory.string());
  mend_detail::check_parity_blocks(what, options.blocks);
  const auto file_system = options.file_system ? options.file_system : posix_file_system();
  const detail::Pin pin(*file_system, directory);
  mend_detail::ParityWriting writing{
      .blocks = options.blocks, .threads = options.threads, .progress = options.progress};
  if (options.writer) {
    writing.is_mine = [&](const detail::FileEntry& file) { return file.writer == *options.writer; };
    return mend_detail::write_parity_files(*file_system, directory, writing);
  }
  mend_detail::Replacer(*file_system, detail::real_directory(directory)).remove_leftovers();
  const VerifyReport report = verify_checkpoint(directory, {.threads = options.threads,
                                                            .pin = false,
                                                            .progress = options.progress,
                                                            .file_system = file_system});
  for (const auto* list : {&report.damage, &report.unread}) {
    for (const Damage& damage : *list) {
      if (damage.file.ends_with(detail::kParitySuffix)) {
        writing.damaged.insert(damage.file);
        continue;
      }
      const bool is_damage = list == &report.damage;
      throw Error(
          is_damage ? ErrorCode::corrupt : ErrorCode::io,
          fmt::format("{}: found it damaged, needed is a repair first: {}", what, damage.message));
    }
  }
  return mend_detail::write_parity_files(*file_system, directory, writing);
}

std::int64_t remove_parity(const fs::path& directory, std::shared_ptr<FileSystem> file_system) {
  if (!file_system) file_system = posix_file_system();
  const fs::path own = detail::real_directory(directory);
  static_cast<void>(detail::read_manifest_text(detail::open_directory(*file_system, own)));
  std::int64_t removed = 0;
  for (const std::string& name : file_system->list(own)) {
    if (!name.ends_with(detail::kParitySuffix)) continue;
    file_system->remove(own / name);
    ++removed;
  }
  if (removed > 0) file_system->sync_directory(own);
  return removed;
}

}  // namespace shardwise
