#include "shardwise/convert/detail/zip_member.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <limits>
#include <new>
#include <stdexcept>
#include <utility>
#include <vector>

#include "shardwise/shard/error.h"
#include "shardwise/shard/host/mutex.h"

namespace shardwise::detail {
namespace {

constexpr std::size_t kInputBytes = std::size_t{64} << 10, kOutputBytes = std::size_t{256} << 10;

// Places to resume inflating from: about 5 ms of inflating apart, and few enough to take only a
// small part of the memory of a read.
constexpr std::uint64_t kLeastStep = std::uint64_t{1} << 20, kMostPlaces = 32;

[[noreturn]] void refuse_member(const std::string& what) { throw Error(ErrorCode::corrupt, what); }

}  // namespace

/// Inflates a member from its start, or from another one's place. Thread-compatible.
class Inflating {
 public:
  Inflating() {
    constexpr int kRawDeflate = -15;
    if (inflateInit2(&stream_, kRawDeflate) != Z_OK) throw std::bad_alloc();
  }

  Inflating(const Inflating& other)
      : input_(other.input_ - other.stream_.avail_in), output_(other.output_) {
    // The library only reads from its source.
    if (inflateCopy(&stream_, const_cast<z_stream*>(&other.stream_)) != Z_OK)
      throw std::bad_alloc();
    stream_.avail_in = 0;  // the buffer is the other's
  }
  Inflating& operator=(const Inflating&) = delete;
  ~Inflating() { inflateEnd(&stream_); }

  /// Offset of the next inflated byte.
  std::uint64_t output() const { return output_; }

  /// Writes at most out.size() bytes, fewer only at the end.
  std::size_t inflate(File& archive, const ZipMember& member, std::span<std::byte> out) {
    stream_.next_out = reinterpret_cast<Bytef*>(out.data());
    stream_.avail_out = static_cast<uInt>(out.size());
    while (stream_.avail_out > 0 && !ended_) {
      if (stream_.avail_in == 0) fill(archive, member);
      const int status = ::inflate(&stream_, Z_NO_FLUSH);
      ended_ = status == Z_STREAM_END;
      if (status == Z_MEM_ERROR) throw std::bad_alloc();
      if (status != Z_OK && status != Z_STREAM_END) {
        refuse_member(fmt::format("it cannot be inflated at its byte {}: {}", output_,
                                  stream_.msg != nullptr ? stream_.msg : "it ends too early"));
      }
    }
    const std::size_t count = out.size() - stream_.avail_out;
    output_ += count;
    return count;
  }

  /// True if all stored bytes of the member were used.
  bool is_at_end(const ZipMember& member) const {
    return ended_ && input_ - stream_.avail_in == member.stored_bytes;
  }

 private:
  void fill(File& archive, const ZipMember& member) {
    buffer_.resize(static_cast<std::size_t>(
        std::min<std::uint64_t>(member.stored_bytes - input_, kInputBytes)));
    if (buffer_.empty())
      refuse_member(fmt::format("it ends at its byte {} of {}", output_, member.bytes));
    archive.read_at(member.offset + input_, buffer_.data(), buffer_.size());
    input_ += buffer_.size();
    stream_.next_in = reinterpret_cast<Bytef*>(buffer_.data());
    stream_.avail_in = static_cast<uInt>(buffer_.size());
  }

  z_stream stream_{};
  std::vector<std::byte> buffer_;
  std::uint64_t input_ = 0, output_ = 0;
  bool ended_ = false;
};

std::uint32_t zip_crc(std::uint32_t crc, std::span<const std::byte> bytes) {
  return static_cast<std::uint32_t>(
      crc32_z(crc, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

std::uint32_t zip_crc_joined(std::uint32_t first, std::uint32_t second,
                             std::uint64_t second_bytes) {
  return static_cast<std::uint32_t>(
      crc32_combine(first, second, static_cast<z_off_t>(second_bytes)));
}

/// Thread-safe.
class ZipMemberFile::Inflated {
 public:
  Inflated(File& archive, const ZipMember& member)
      : archive_(archive),
        member_(member),
        step_(std::max(kLeastStep, member.bytes / kMostPlaces + 1)) {}

  void read(std::uint64_t offset, std::span<std::byte> out) {
    const MutexLock lock(mutex_);
    seek(offset);
    std::size_t done = 0;
    while (done < out.size()) {
      const std::size_t count = next(out.subspan(done, std::min(out.size() - done, kOutputBytes)));
      if (count == 0)
        refuse_member(fmt::format("it ends at its byte {} of {}", offset + done, member_.bytes));
      done += count;
    }
  }

  /// True if nothing follows the member's last byte. Reads up to it.
  bool ends() {
    const MutexLock lock(mutex_);
    seek(member_.bytes);
    std::byte more{};
    return next({&more, 1}) == 0 && at_->is_at_end(member_);
  }

 private:
  /// Moves the stream to `offset`, from the nearest place before it.
  void seek(std::uint64_t offset) SHARDWISE_REQUIRES(mutex_) {
    const Inflating* from = nullptr;
    for (const auto& place : places_) {
      if (place->output() <= offset) from = place.get();
    }
    const bool goes_on = at_ && at_->output() <= offset;
    if (!goes_on || (from != nullptr && from->output() > at_->output())) {
      at_ = from != nullptr ? std::make_unique<Inflating>(*from) : std::make_unique<Inflating>();
    }
    while (at_->output() < offset) {
      skipped_.resize(kOutputBytes);
      const std::uint64_t left = offset - at_->output();
      if (next(std::span(skipped_).first(
              static_cast<std::size_t>(std::min<std::uint64_t>(left, kOutputBytes)))) == 0) {
        refuse_member(fmt::format("it ends at its byte {} of {}", at_->output(), member_.bytes));
      }
    }
  }

  std::size_t next(std::span<std::byte> out) SHARDWISE_REQUIRES(mutex_) {
    const std::size_t count = at_->inflate(archive_, member_, out);
    const std::uint64_t last = places_.empty() ? 0 : places_.back()->output();
    if (at_->output() >= last + step_) places_.push_back(std::make_unique<Inflating>(*at_));
    return count;
  }

  File& archive_;
  const ZipMember& member_;
  const std::uint64_t step_;
  Mutex mutex_;
  std::unique_ptr<Inflating> at_ SHARDWISE_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Inflating>> places_ SHARDWISE_GUARDED_BY(mutex_);  // ascending
  std::vector<std::byte> skipped_ SHARDWISE_GUARDED_BY(mutex_);
};

ZipMemberFile::ZipMemberFile(std::shared_ptr<File> archive, ZipMember member)
    : archive_(std::move(archive)), member_(std::move(member)) {
  if (member_.is_deflated) inflated_ = std::make_unique<Inflated>(*archive_, member_);
}

ZipMemberFile::~ZipMemberFile() = default;

void ZipMemberFile::read_at(std::uint64_t offset, std::byte* data, std::size_t size) {
  if (offset > member_.bytes || size > member_.bytes - offset) {
    refuse_member(
        fmt::format("found {} bytes, needed are {} from {} on", member_.bytes, size, offset));
  }
  if (size == 0) return;
  if (inflated_) return inflated_->read(offset, {data, size});
  archive_->read_at(member_.offset + offset, data, size);
}

void ZipMemberFile::check() {
  std::vector<std::byte> part(kOutputBytes);
  std::uint32_t crc = 0;
  for (std::uint64_t at = 0; at < member_.bytes;) {
    const std::uint64_t left = member_.bytes - at;
    const auto size = static_cast<std::size_t>(std::min<std::uint64_t>(left, part.size()));
    read_at(at, part.data(), size);
    crc = zip_crc(crc, std::span(part).first(size));
    at += size;
  }
  if (crc != member_.crc) {
    refuse_member(fmt::format("its CRC is {:08x}, the archive says {:08x}", crc, member_.crc));
  }
  if (inflated_ && !inflated_->ends()) {
    refuse_member(
        fmt::format("it has more than the {} bytes that the archive says", member_.bytes));
  }
}

void ZipMemberFile::write_at(std::uint64_t, const std::byte*, std::size_t) {
  throw std::logic_error("members of archives are for reading");
}

void ZipMemberFile::resize(std::uint64_t) {
  throw std::logic_error("members of archives are for reading");
}

}  // namespace shardwise::detail
