#include "shardwise/loader/detail/input_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "shardwise/shard/error.h"

namespace shardwise::detail {

InputFile::InputFile(const std::filesystem::path& path) : path_(path.string()) {
  // Without O_NONBLOCK, opening a named pipe would wait for a writer.
  descriptor_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor_ < 0) {
    const int cause = errno;
    throw Error(cause == ENOENT || cause == ENOTDIR ? ErrorCode::not_found : ErrorCode::io,
                fmt::format("open: {}: {}", path_, std::strerror(cause)));
  }
  struct stat status;
  if (::fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(descriptor_);
    throw Error(ErrorCode::io, fmt::format("open: {} is not a regular file", path_));
  }
  size_bytes_ = static_cast<std::size_t>(status.st_size);
}

InputFile::~InputFile() { ::close(descriptor_); }

std::size_t InputFile::read_at(std::size_t offset, std::span<std::byte> out) const {
  std::size_t done = 0;
  while (done < out.size()) {
    const ssize_t count = ::pread(descriptor_, out.data() + done, out.size() - done,
                                  static_cast<off_t>(offset + done));
    if (count == 0) break;
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      throw Error(ErrorCode::io, fmt::format("read: {} at offset {}: {}", path_, offset + done,
                                             std::strerror(errno)));
    }
    done += static_cast<std::size_t>(count);
  }
  return done;
}

}  // namespace shardwise::detail
