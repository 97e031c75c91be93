#include "shardwise/checkpoint/detail/parity/parity_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "shardwise/shard/error.h"
#include "testing/errors.h"
#include "testing/memory_files.h"

namespace shardwise::detail {
namespace {

using testing::HasSubstr;

constexpr std::size_t kSmallBlock = 4096;

ParityHeader header_of(const ParityLayout& layout) {
  ParityHeader header{.layout = layout, .hash = {7, 8}, .data = {}, .parity = {}};
  for (std::uint64_t i = 0; i < layout.blocks(); ++i) header.data.push_back({i, 1});
  header.parity.resize(layout.groups() * static_cast<std::uint64_t>(layout.parity_blocks), {3, 4});
  return header;
}

TEST(ParityLayout, GivesEachBlockItsOwnPlaceInASmallEnoughGroup) {
  for (const std::uint64_t bytes : {1u, 63u, 64u, 4095u, 4096u, 4097u, 900'000u, 5'000'000u}) {
    for (const std::int64_t parity : {1, 2, 9, 127}) {
      const ParityLayout layout{bytes, parity, 4096};
      std::set<std::pair<std::uint64_t, std::size_t>> places;
      std::uint64_t all = 0;
      for (std::uint64_t b = 0; b < layout.blocks(); ++b) {
        places.emplace(layout.group_of(b), layout.source_of(b));
        EXPECT_LT(layout.source_of(b), layout.sources(layout.group_of(b)));
        EXPECT_GT(layout.bytes_of(b), 0u);
        all += layout.bytes_of(b);
      }
      EXPECT_EQ(all, bytes);
      EXPECT_EQ(places.size(), layout.blocks());
      std::uint64_t sources = 0;
      for (std::uint64_t g = 0; g < layout.groups(); ++g) {
        EXPECT_LE(layout.sources(g) + static_cast<std::size_t>(parity), 255u);
        sources += layout.sources(g);
      }
      EXPECT_EQ(sources, layout.blocks());
      EXPECT_EQ(layout.address(layout.parity_number(layout.groups(), 0)), layout.second_header());
      EXPECT_EQ(layout.block_bytes() % 64, 0u);
    }
  }
}

// So the number of parity blocks is known if the first header is not.
TEST(ParityLayout, HasAnotherSizeForEachNumberOfParityBlocks) {
  for (const std::uint64_t bytes : {1u, 4096u, 900'000u, 5'000'000u}) {
    std::set<std::uint64_t> sizes;
    for (std::int64_t parity = 1; parity <= kMostParityBlocks; ++parity) {
      const std::uint64_t size = ParityLayout{bytes, parity, 4096}.bytes();
      EXPECT_TRUE(sizes.empty() || size > *sizes.rbegin());
      sizes.insert(size);
    }
  }
}

class ParityHeaders : public testing::Test {
 protected:
  ReadParityHeader read(std::vector<std::byte> bytes) {
    const MemoryFileSystem files({{"p", std::move(bytes)}});
    return read_parity_header(*const_cast<MemoryFileSystem&>(files).open("p"), "p", of_,
                              kSmallBlock);
  }
  const ParityLayout layout_{
      .file_bytes = 30'000, .parity_blocks = 2, .most_block_bytes = kSmallBlock};
  const ParityOf of_{30'000, {7, 8}};
  const std::vector<std::byte> printed_ = print_parity_header(header_of(layout_));

  std::vector<std::byte> file() const {
    std::vector<std::byte> bytes(layout_.bytes());
    std::ranges::copy(printed_, bytes.begin());
    std::ranges::copy(printed_, bytes.end() - static_cast<std::ptrdiff_t>(printed_.size()));
    return bytes;
  }
};

TEST_F(ParityHeaders, SurviveTheLossOfEitherCopy) {
  EXPECT_EQ(read(file()).problem, "");
  for (std::size_t place = 0; place < printed_.size(); ++place) {
    std::vector<std::byte> first = file(), second = file(), both = file();
    first[place] ^= std::byte{1};
    second[layout_.second_header() + place] ^= std::byte{1};
    both[place] ^= std::byte{1};
    both[layout_.second_header() + place] ^= std::byte{1};
    for (auto* damaged : {&first, &second}) {
      const ReadParityHeader found = read(*damaged);
      EXPECT_EQ(print_parity_header(found.header), printed_);
      EXPECT_NE(found.problem, "");
    }
    EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { read(both); }), HasSubstr("the header"));
  }
}

TEST_F(ParityHeaders, AreReadFromAFileThatWasCutOff) {
  for (const std::size_t bytes : {printed_.size(), file().size() - 1, file().size() + 1}) {
    std::vector<std::byte> cut = file();
    cut.resize(bytes);
    const ReadParityHeader found = read(cut);
    EXPECT_EQ(print_parity_header(found.header), printed_);
    EXPECT_THAT(found.problem, HasSubstr("needed are"));
  }
  std::vector<std::byte> cut = file();
  cut.resize(printed_.size() - 1);
  EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { read(cut); }), HasSubstr("parity"));
}

TEST_F(ParityHeaders, OfAnotherFileAreRefused) {
  const MemoryFileSystem files({{"p", file()}});
  const auto read_as = [&](const ParityOf& of) {
    read_parity_header(*const_cast<MemoryFileSystem&>(files).open("p"), "p", of, kSmallBlock);
  };
  EXPECT_THAT(message_of(ErrorCode::corrupt,
                         [&] {
                           read_as({30'000, {7, 9}});
                         }),
              HasSubstr("found the parity of another file"));
  EXPECT_THAT(message_of(ErrorCode::corrupt,
                         [&] {
                           read_as({20'000, {7, 8}});
                         }),
              HasSubstr("read p: "));
  EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { read_as({0, {7, 8}}); }), HasSubstr("parity"));
  EXPECT_THAT(message_of(ErrorCode::corrupt,
                         [&] {
                           read_as({UINT64_MAX, {7, 8}});
                         }),
              HasSubstr("parity"));
}

}  // namespace
}  // namespace shardwise::detail
