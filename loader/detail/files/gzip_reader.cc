#include "shardwise/loader/detail/files/gzip_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <new>

#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

constexpr int kGzipOnly = 15 + 16;  // inflateInit2: the largest window, gzip header needed
constexpr Bytef kFirstMagicByte = 0x1f;

}  // namespace

GzipReader::GzipReader(const InputFile& file) : file_(file) {
  if (inflateInit2(&stream_, kGzipOnly) != Z_OK) throw std::bad_alloc();
}

GzipReader::~GzipReader() { inflateEnd(&stream_); }

std::size_t GzipReader::read(std::span<std::byte> out) {
  std::size_t done = 0;
  while (done < out.size()) {
    if (!within_member_ && !begin_next_member()) break;
    if (stream_.avail_in == 0 && !refill()) fail("ends within a gzip member");
    const std::size_t room =
        std::min<std::size_t>(out.size() - done, std::numeric_limits<uInt>::max());
    stream_.next_out = reinterpret_cast<Bytef*>(out.data() + done);
    stream_.avail_out = static_cast<uInt>(room);
    const int result = inflate(&stream_, Z_NO_FLUSH);
    done += room - stream_.avail_out;
    if (result == Z_STREAM_END) {
      within_member_ = false;
    } else if (result == Z_MEM_ERROR) {
      throw std::bad_alloc();
    } else if (result != Z_OK && result != Z_BUF_ERROR) {  // Z_BUF_ERROR: needed is more input
      fail(stream_.msg != nullptr ? stream_.msg : "needs a preset dictionary");
    }
  }
  return done;
}

bool GzipReader::refill() {
  const std::size_t count = file_.read_at(next_offset_, buffer_);
  next_offset_ += count;
  stream_.next_in = reinterpret_cast<Bytef*>(buffer_.data());
  stream_.avail_in = static_cast<uInt>(count);
  return count > 0;
}

bool GzipReader::begin_next_member() {
  if (stream_.avail_in == 0 && !refill()) return false;
  if (*stream_.next_in != kFirstMagicByte) fail("goes on with other bytes after a gzip member");
  inflateReset(&stream_);
  within_member_ = true;
  return true;
}

void GzipReader::fail(const char* found) const {
  throw Error(ErrorCode::corrupt, fmt::format("unpack: {} at offset {}: {}", file_.path(),
                                              next_offset_ - stream_.avail_in, found));
}

}  // namespace shardwise::detail
