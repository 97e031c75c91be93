#include "shardwise/checkpoint/staged_output.h"

#include <string>
#include <utility>
#include <vector>

#include "shardwise/checkpoint/detail/root/attempt.h"
#include "shardwise/checkpoint/detail/root/exchange.h"
#include "shardwise/checkpoint/detail/root/root.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/file.h"

namespace shardwise {
namespace {

// A name has at most 255 bytes, and the hidden one says more.
constexpr std::size_t kMostOfName = 180;

std::filesystem::path short_name(const std::filesystem::path& target) {
  return target.parent_path() / target.filename().string().substr(0, kMostOfName);
}

/// Garbage that cannot be removed, such as another user's, is in nobody's way.
FileSystem& without_garbage(FileSystem& file_system, const std::filesystem::path& folder) {
  try {
    detail::collect_root_garbage(file_system, folder);
  } catch (const Error&) {
  }
  return file_system;
}

}  // namespace

struct StagedOutput::Impl {
  Impl(FileSystem& files, std::filesystem::path where)
      : file_system(without_garbage(files, where.parent_path())),
        target(std::move(where)),
        attempt(file_system, short_name(target), leftovers),
        place(attempt.directory() / target.filename()) {}

  FileSystem& file_system;
  const std::filesystem::path target;
  std::vector<std::filesystem::path> leftovers;  // the next output's to remove
  detail::Attempt attempt;
  const std::filesystem::path place;
};

StagedOutput::StagedOutput(FileSystem& file_system, const std::filesystem::path& target)
    : impl_(std::make_unique<Impl>(file_system, target)) {}

StagedOutput::~StagedOutput() = default;

const std::filesystem::path& StagedOutput::place() const { return impl_->place; }

void StagedOutput::publish(bool replaces) {
  FileSystem& file_system = impl_->file_system;
  if (replaces) {
    const char* aside = impl_->target.filename() == "replaced" ? "old" : "replaced";
    detail::exchange_by_any_means(file_system, impl_->place, impl_->target,
                                  impl_->attempt.directory() / aside);
  } else {
    file_system.rename(impl_->place, impl_->target);
  }
  file_system.sync_directory(impl_->target.parent_path());
}

}  // namespace shardwise
