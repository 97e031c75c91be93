#include <algorithm>
#include <limits>

#include "shardwise/convert/detail/model_source.h"
#include "shardwise/convert/detail/write/export_format.h"
#include "shardwise/convert/detail/zip_member.h"
#include "shardwise/storage/detail/npy_header.h"

// Fields are named as in APPNOTE.TXT, 4.3.
namespace shardwise::detail {
namespace {

constexpr std::uint64_t kMost16 = 0xFFFF, kMost32 = 0xFFFFFFFF;

void put(std::string& text, std::uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i) & 0xFF);
}

/// Members are stored, with sizes of 64 bits, as numpy's library writes them; CRCs follow the data,
/// since they are known only then.
class NpzFrame final : public FileFrame {
 public:
  explicit NpzFrame(std::span<const TensorInfo> tensors) {
    for (const TensorInfo& tensor : tensors) {
      Member member{.name = tensor.name + ".npy", .header = {}};
      member.header = npy_header_text(tensor.dtype, tensor.shape);
      member.bytes = member.header.size() + num_bytes(tensor.shape, size_bytes(tensor.dtype));
      member.offset = data_end_;
      member.crc = zip_crc(0, std::as_bytes(std::span(member.header)));
      data_end_ += local(member).size() + member.bytes + kDescriptorBytes;
      members_.push_back(std::move(member));
    }
    bytes_ = data_end_ + directory().size();
  }

  std::uint64_t bytes() const override { return bytes_; }

  std::string before(std::size_t tensor) override {
    return local(members_[tensor]) + members_[tensor].header;
  }

  std::string after(std::size_t tensor, std::uint32_t crc) override {
    Member& member = members_[tensor];
    member.crc = zip_crc_joined(member.crc, crc, member.bytes - member.header.size());
    std::string text = "PK\7\x08";
    put(text, member.crc, 4);
    put(text, member.bytes, 8);
    put(text, member.bytes, 8);
    return text;
  }

  std::string end() override { return directory(); }

 private:
  static constexpr std::size_t kDescriptorBytes = 24;
  static constexpr std::uint64_t kVersion = 45, kSizesFollow = 1 << 3, kUtf8 = 1 << 11,
                                 kFirstDate = 0x21, kUnix = 3, kRights = 0100644;

  struct Member {
    std::string name, header;
    std::uint64_t bytes = 0, offset = 0;  ///< with the header; of the local header
    std::uint32_t crc = 0;
  };

  /// Version, flags, method, time and date.
  static void put_kind(std::string& text, const Member& member) {
    const bool is_ascii = std::ranges::all_of(member.name, [](char c) { return c >= 0; });
    put(text, kVersion, 2);
    put(text, kSizesFollow | (is_ascii ? 0 : kUtf8), 2);
    put(text, 0, 4);
    put(text, kFirstDate, 2);
  }

  static std::string local(const Member& member) {
    std::string text = "PK\3\4";
    put_kind(text, member);
    put(text, 0, 4);
    put(text, kMost32, 4);
    put(text, kMost32, 4);
    put(text, member.name.size(), 2);
    put(text, 20, 2);
    text += member.name;
    put(text, 1, 2);
    put(text, 16, 2);
    put(text, member.bytes, 8);
    put(text, member.bytes, 8);
    return text;
  }

  static std::string entry(const Member& member) {
    std::string text = "PK\1\2", extra;
    const bool is_large = member.bytes >= kMost32 || member.offset >= kMost32;
    if (is_large) {
      put(extra, 1, 2);
      put(extra, 24, 2);
      put(extra, member.bytes, 8);
      put(extra, member.bytes, 8);
      put(extra, member.offset, 8);
    }
    put(text, kVersion | kUnix << 8, 2);
    put_kind(text, member);
    put(text, member.crc, 4);
    put(text, is_large ? kMost32 : member.bytes, 4);
    put(text, is_large ? kMost32 : member.bytes, 4);
    put(text, member.name.size(), 2);
    put(text, extra.size(), 2);
    put(text, 0, 6);  // no comment, disk 0, nothing internal
    put(text, kRights << 16, 4);
    put(text, is_large ? kMost32 : member.offset, 4);
    return text + member.name + extra;
  }

  std::string directory() const {
    std::string text;
    for (const Member& member : members_) text += entry(member);
    const std::uint64_t bytes = text.size(), count = members_.size();
    if (count >= kMost16 || data_end_ >= kMost32 || bytes >= kMost32) {
      text += "PK\6\6";
      put(text, 44, 8);  // size of the rest of this record
      put(text, kVersion, 2);
      put(text, kVersion, 2);
      put(text, 0, 8);
      put(text, count, 8);
      put(text, count, 8);
      put(text, bytes, 8);
      put(text, data_end_, 8);
      text += "PK\6\7";
      put(text, 0, 4);
      put(text, data_end_ + bytes, 8);
      put(text, 1, 4);
    }
    text += "PK\5\6";
    put(text, 0, 4);
    put(text, std::min(count, kMost16), 2);
    put(text, std::min(count, kMost16), 2);
    put(text, std::min(bytes, kMost32), 4);
    put(text, std::min(data_end_, kMost32), 4);
    put(text, 0, 2);
    return text;
  }

  std::vector<Member> members_;
  std::uint64_t data_end_ = 0, bytes_ = 0;
};

class NpzExport final : public ExportFormat {
 public:
  std::string_view name() const override { return kNpz; }
  std::string_view suffix() const override { return ".npz"; }
  bool needs_crc() const override { return true; }

  /// numpy has no 8-bit floats; raw bytes would not say which one it is.
  bool has_dtype(DType dtype) const override {
    return is_computed(dtype) || dtype == DType::c64 || dtype == DType::c128;
  }

  std::string problem_of(std::span<const TensorInfo> tensors) const override {
    constexpr std::size_t kMostNameBytes = kMost16 - 4;
    const bool fits = std::ranges::all_of(
        tensors, [](const TensorInfo& t) { return t.name.size() <= kMostNameBytes; });
    return fits ? "" : "a tensor's name has more than 65,531 bytes";
  }

  std::unique_ptr<FileFrame> frame(std::span<const TensorInfo> tensors,
                                   const StringMap&) const override {
    return std::make_unique<NpzFrame>(tensors);
  }
};

}  // namespace

const ExportFormat& npz_export() {
  static const NpzExport format;
  return format;
}

}  // namespace shardwise::detail
