#include "shardwise/convert/detail/zip_member.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "convert/zip_bytes.h"
#include "testing/errors.h"
#include "testing/memory_files.h"

namespace shardwise {
namespace {

std::shared_ptr<detail::ZipMemberFile> member_of(const ZipFile& file) {
  const std::string bytes = zip_of({file});
  const auto content = std::as_bytes(std::span(std::string_view(bytes)));
  const auto files =
      std::make_shared<MemoryFileSystem>(MemoryFiles{{"m", {content.begin(), content.end()}}});
  const std::shared_ptr<File> archive = files->open("m");
  const auto member = detail::read_zip_directory(*archive)[0];
  // The file's bytes are the file system's.
  return {new detail::ZipMemberFile(archive, member),
          [files](const detail::ZipMemberFile* gone) { delete gone; }};
}

std::string read(File& file, std::uint64_t offset, std::size_t size) {
  std::string text(size, '\0');
  file.read_at(offset, reinterpret_cast<std::byte*>(text.data()), size);
  return text;
}

TEST(ZipMember, IsReadForwardsAndBackwards) {
  std::string content;
  for (int i = 0; i < 300'000; ++i) content += std::to_string(i) + ' ';
  for (const Stored stored : {Stored::plain, Stored::deflated}) {
    const auto file = member_of({"a", content, stored});
    EXPECT_EQ(file->size(), content.size());
    EXPECT_EQ(read(*file, 1'500'000, 9), content.substr(1'500'000, 9));
    EXPECT_EQ(read(*file, 5, 9), content.substr(5, 9));
    file->check();
    EXPECT_EQ(read(*file, content.size() - 7, 7), content.substr(content.size() - 7));
    EXPECT_EQ(read(*file, 1'000'000, 9), content.substr(1'000'000, 9));
  }
}

TEST(ZipMember, IsComparedWithItsChecksum) {
  for (const Stored stored : {Stored::plain, Stored::deflated}) {
    const auto file = member_of({"a", "abcdef", stored, {.crc = 1}});
    EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { file->check(); }),
                testing::HasSubstr("its CRC is "));
  }
}

TEST(ZipMember, ChecksumsAreJoined) {
  const auto crc = [](std::string_view text) {
    return detail::zip_crc(0, std::as_bytes(std::span(text)));
  };
  EXPECT_EQ(crc("abcdef"), zip_crc_of("abcdef"));
  EXPECT_EQ(detail::zip_crc_joined(crc("abc"), crc("def"), 3), crc("abcdef"));
}

}  // namespace
}  // namespace shardwise
