#include "shardwise/checkpoint/detail/root/marks/writer_lease.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <cstdint>
#include <ctime>
#include <memory>
#include <optional>
#include <span>

#include "shardwise/checkpoint/detail/root/directory_state.h"
#include "shardwise/checkpoint/detail/root/names.h"
#include "shardwise/checkpoint/detail/root/root.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/file.h"
#include "shardwise/storage/object/bucket_path.h"

namespace shardwise::detail {
namespace {

// Without this limit, a job that resumes after its host died would keep all the old job's steps.
constexpr std::int64_t kMostSilentSeconds = 3600;

}  // namespace

WriterLease::WriterLease(const std::filesystem::path& root) : root_(root) {
  if (in_bucket(root)) return;  // nobody could tell there that its process has ended
  try {
    const std::string text = print_lease(this_process());
    const std::string name = writer_name(new_id());
    const std::unique_ptr<File> file = posix_file_system()->create(root_ / name, Caching::cached);
    name_ = name;
    file->write_at(0, std::as_bytes(std::span(text)).data(), text.size());
    file->close();
  } catch (const Error&) {
    // A root of another file system, or a full disk.
  }
}

WriterLease::~WriterLease() {
  if (name_.empty() || !maker_.is_this_process()) return;
  try {
    posix_file_system()->remove(root_ / name_);
  } catch (...) {
    // It holds as long as this process lives, and is then anyone's to remove.
  }
}

void WriterLease::renew() const {
  // The time is that of the file system, which is the same for all hosts.
  if (!name_.empty()) ::utimensat(AT_FDCWD, (root_ / name_).c_str(), nullptr, 0);
}

std::vector<std::string> WriterLease::others() const {
  std::vector<std::string> others;
  try {
    const std::shared_ptr<FileSystem> files = posix_file_system();
    const std::int64_t now =
        name_.empty() ? std::time(nullptr) : DirectoryState(root_ / name_).modified_seconds();
    for (const std::string& name : files->list(root_)) {
      const std::optional<HiddenName> hidden = parse_hidden_name(name);
      if (!hidden || hidden->kind != HiddenKind::writer || name == name_) continue;
      const std::int64_t last = DirectoryState(root_ / name).modified_seconds();
      const std::optional<LeaseOwner> owner = live_owner(*files, root_ / name);
      if (!owner || (!is_of_here(*owner) && now - last > kMostSilentSeconds)) continue;
      others.push_back(fmt::format("process {} on {}, last {:%Y-%m-%d %H:%M:%S}", owner->pid,
                                   owner->host, fmt::localtime(static_cast<std::time_t>(last))));
    }
  } catch (const Error&) {
    // Then nothing is known of them.
  }
  return others;
}

}  // namespace shardwise::detail
