#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "shardwise/convert/detail/write/export_format.h"
#include "shardwise/convert/detail/zip_directory.h"
#include "shardwise/storage/file.h"

namespace shardwise {
namespace {

/// The frame of a file whose elements are zeros, without these.
class SparseFile final : public File {
 public:
  SparseFile(const detail::ExportFormat& format, const std::vector<TensorInfo>& tensors) {
    const auto frame = format.frame(tensors, {});
    std::uint64_t at = 0;
    const auto put = [&](const std::string& text) {
      if (!text.empty()) texts_.emplace(at, text);
      at += text.size();
    };
    put(frame->begin());
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      put(frame->before(t));
      at += num_bytes(tensors[t].shape, size_bytes(tensors[t].dtype));
      put(frame->after(t, 0));
    }
    put(frame->end());
    size_ = at;
    EXPECT_EQ(frame->bytes(), at);
  }

  std::uint64_t size() override { return size_; }
  void read_at(std::uint64_t offset, std::byte* data, std::size_t size) override {
    std::fill_n(data, size, std::byte{});
    auto text = texts_.upper_bound(offset);
    if (text != texts_.begin()) --text;
    for (; text != texts_.end() && text->first < offset + size; ++text) {
      for (std::size_t i = 0; i < text->second.size(); ++i) {
        const std::uint64_t at = text->first + i;
        if (at >= offset && at < offset + size) {
          data[at - offset] = static_cast<std::byte>(text->second[i]);
        }
      }
    }
  }
  void write_at(std::uint64_t, const std::byte*, std::size_t) override {}
  void resize(std::uint64_t) override {}
  void sync() override {}
  void close() override {}

 private:
  std::map<std::uint64_t, std::string> texts_;
  std::uint64_t size_ = 0;
};

TEST(NpzExport, Of64BitsSaysWhereItsMembersAre) {
  const auto tensor = [](std::string name, Shape shape) {
    return TensorInfo{.name = std::move(name), .dtype = DType::u8, .shape = shape};
  };
  const std::int64_t large = std::int64_t{5} << 30;
  SparseFile file(detail::npz_export(), {tensor("a", {large}), tensor("b", {3})});
  const std::vector<detail::ZipMember> members = detail::read_zip_directory(file);
  ASSERT_EQ(members.size(), 2u);
  EXPECT_EQ(members[0].bytes, static_cast<std::uint64_t>(large) + 128);
  EXPECT_EQ(members[1].bytes, 131u);
  EXPECT_GT(members[1].offset, static_cast<std::uint64_t>(large));

  std::vector<TensorInfo> many;
  for (int t = 0; t < 70'000; ++t) many.push_back(tensor(std::to_string(t), {}));
  SparseFile of_many(detail::npz_export(), many);
  EXPECT_EQ(detail::read_zip_directory(of_many).size(), 70'000u);
}

}  // namespace
}  // namespace shardwise
