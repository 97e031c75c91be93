#include "shardwise/loader/detail/files/input_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

// storage's files refuse links, since a checkpoint has none, but data sets often are links.
std::filesystem::path without_links(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::path target = std::filesystem::canonical(path, error);
  if (error) {
    const bool absent =
        error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory;
    throw Error(absent ? ErrorCode::not_found : ErrorCode::io,
                fmt::format("open: {}: {}", path.string(), error.message()), error.value());
  }
  if (!std::filesystem::is_regular_file(target, error)) {
    throw Error(ErrorCode::io, fmt::format("open: {} is not a regular file", path.string()));
  }
  return target;
}

}  // namespace

InputFile::InputFile(const std::filesystem::path& path) {
  if (is_remote(path)) {
    path_ = shown_url(path);
    file_ = remote_ = std::make_shared<RemoteFile>(path);
  } else {
    path_ = path.string();
    file_ = posix_file_system()->open(without_links(path));
  }
  size_bytes_ = static_cast<std::size_t>(file_->size());
}

InputFile::InputFile(const std::filesystem::path& url, const ObjectInfo& known)
    : path_(shown_url(url)),
      remote_(std::make_shared<RemoteFile>(url, &known)),
      size_bytes_(static_cast<std::size_t>(known.size)) {
  file_ = remote_;
}

InputFile::InputFile(std::string name, std::unique_ptr<File> file)
    : path_(std::move(name)),
      file_(std::move(file)),
      size_bytes_(static_cast<std::size_t>(file_->size())) {}

std::size_t InputFile::read_at(std::size_t offset, std::span<std::byte> out) const {
  const auto read_up_to = [&](std::size_t end) {
    const std::size_t size = std::min(out.size(), end - std::min(end, offset));
    if (size > 0) file_->read_at(offset, out.data(), size);
    return size;
  };
  try {
    return read_up_to(size_bytes_);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::corrupt || remote_) throw;
    return read_up_to(static_cast<std::size_t>(file_->size()));  // it was cut after it was opened
  }
}

}  // namespace shardwise::detail
