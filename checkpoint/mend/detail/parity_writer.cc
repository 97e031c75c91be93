#include "shardwise/mend/detail/parity_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "shardwise/checkpoint/detail/format/step_name.h"
#include "shardwise/checkpoint/detail/root/root.h"
#include "shardwise/runtime/parallel.h"
#include "shardwise/runtime/stopwatch.h"
#include "shardwise/shard/error.h"

namespace shardwise::mend_detail {
namespace {

namespace fs = std::filesystem;

// A linked file is the newest steps' or nobody's.
constexpr std::size_t kStepsToLinkFrom = 3;

detail::ParityLayout parity_layout(const detail::ProtectedFile& file, std::int64_t blocks) {
  return {.file_bytes = file.of.bytes, .parity_blocks = blocks};
}

std::vector<detail::ProtectedFile> files_to_protect(FileSystem& file_system,
                                                    const fs::path& directory,
                                                    const ParityWriting& writing) {
  const detail::OpenDirectory opened = detail::open_directory(file_system, directory);
  detail::StoredCheckpoint stored =
      detail::unread_checkpoint(opened, detail::read_manifest(opened));
  std::set<std::string> mine;
  for (std::size_t f = 0; f < stored.manifest.files.size(); ++f) {
    const detail::FileEntry& entry = stored.manifest.files[f];
    if (writing.is_mine && !writing.is_mine(entry)) continue;
    mine.insert(entry.name);
    detail::load_file(stored, f);
  }
  std::vector<detail::ProtectedFile> files = detail::protected_files(stored);
  std::erase_if(files, [&](const detail::ProtectedFile& file) {
    return !file.is_linked && !mine.contains(file.name);
  });
  return files;
}

/// Writes the parity of one checkpoint. Thread-compatible.
class ParityWriter {
 public:
  ParityWriter(FileSystem& file_system, const fs::path& directory, const ParityWriting& writing)
      : file_system_(file_system),
        writing_(writing),
        replacer_(file_system, detail::real_directory(directory)) {}

  ParityStats run() {
    std::vector<detail::ProtectedFile> missing;
    for (detail::ProtectedFile& file : files_to_protect(file_system_, directory(), writing_)) {
      const detail::ParityLayout layout = parity_layout(file, writing_.blocks);
      ++stats_.files;
      stats_.file_bytes += static_cast<std::size_t>(file.of.bytes);
      stats_.parity_bytes += static_cast<std::size_t>(layout.bytes());
      if (fits(directory() / file.parity_name(), file)) continue;
      ++stats_.written;
      if (file.is_linked && link(file)) continue;
      stats_.encoded_bytes += static_cast<std::size_t>(file.of.bytes);
      missing.push_back(std::move(file));
    }
    const Stopwatch watch;
    for (const detail::ProtectedFile& file : missing) write(file);
    if (!missing.empty()) stats_.seconds = watch.seconds();
    return stats_;
  }

 private:
  const fs::path& directory() const { return replacer_.directory(); }

  bool fits(const fs::path& path, const detail::ProtectedFile& file) {
    if (writing_.damaged.contains(path.filename().string())) return false;
    try {
      const auto [header, problem] =
          detail::read_parity_header(*file_system_.open(path), path.string(), file.of);
      return problem.empty() && header.layout.parity_blocks == writing_.blocks;
    } catch (const Error& e) {
      if (e.code() != ErrorCode::corrupt && e.code() != ErrorCode::not_found) throw;
      return false;
    }
  }

  // Links the parity of the same file in another step, if that is right.
  bool link(const detail::ProtectedFile& file) {
    std::vector<detail::StepName> names =
        detail::committed_names(file_system_, directory().parent_path());
    std::ranges::reverse(names);
    std::size_t looked_at = 0;
    for (const detail::StepName& name : names) {
      const fs::path step = directory().parent_path() / to_string(name);
      if (step == directory()) continue;
      if (++looked_at > kStepsToLinkFrom) break;
      try {
        if (link_from(step, file)) return true;
      } catch (const Error&) {
        // Then it is written.
      }
    }
    return false;
  }

  bool link_from(const fs::path& step, const detail::ProtectedFile& file) {
    std::vector<std::string> names{file.name};
    for (const detail::FileEntry& entry :
         detail::read_manifest(detail::open_directory(file_system_, step)).files) {
      if (entry.bytes == file.of.bytes && entry.description_hash == file.of.hash) {
        names.push_back(entry.name);
      }
    }
    for (const std::string& name : names) {
      const fs::path path = step / (name + std::string(detail::kParitySuffix));
      if (!fits(path, file)) continue;
      static_cast<void>(
          detail::check_parity_file(*file_system_.open(path), path.string(), file.of));
      file_system_.link(path, directory() / file.parity_name());
      file_system_.sync_directory(directory());
      return true;
    }
    return false;
  }

  void write(const detail::ProtectedFile& file) {
    ParityEncoding encoding{.threads = Executor::threads_for(writing_.threads)};
    if (writing_.progress) {
      encoding.progress = [this](std::size_t bytes) {
        done_ += bytes;
        writing_.progress({done_, stats_.encoded_bytes});
      };
    }
    put_parity(file_system_, replacer_, file, writing_.blocks, encoding);
  }

  FileSystem& file_system_;
  const ParityWriting& writing_;
  Replacer replacer_;
  ParityStats stats_;
  std::size_t done_ = 0;
};

}  // namespace

void check_parity_blocks(const std::string& what, std::int64_t blocks) {
  if (blocks >= 1 && blocks <= detail::kMostParityBlocks) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{}: found {} parity blocks, needed are 1 to {}", what, blocks,
                          detail::kMostParityBlocks));
}

void put_parity(FileSystem& file_system, Replacer& replacer, const detail::ProtectedFile& file,
                std::int64_t blocks, const ParityEncoding& encoding) {
  replacer.put(file.parity_name(), [&](File& out) {
    write_parity_file(file_system, replacer.directory() / file.name, file.of,
                      parity_layout(file, blocks), out, encoding);
  });
}

ParityStats write_parity_files(FileSystem& file_system, const fs::path& directory,
                               const ParityWriting& writing) {
  return ParityWriter(file_system, directory, writing).run();
}

}  // namespace shardwise::mend_detail
