#include "shardwise/convert/detail/write/aligned_writes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>

#include "testing/temp_dir.h"

namespace shardwise::detail {
namespace {

TEST(AlignedWrites, AreTheBytesInOrderWhateverTheirSizes) {
  const TempDir dir;
  AlignedWrites writes(4 * kPageBytes);
  EXPECT_EQ(writes.most_bytes(), 3 * kPageBytes);
  std::mt19937 random(7);
  for (int round = 0; round < 20; ++round) {
    const auto path = dir / std::to_string(round);
    const auto file = posix_file_system()->create(path, Caching::direct);
    writes.start(*file);
    std::string expected;
    while (expected.size() < static_cast<std::size_t>(round) * 5000) {
      std::string part(random() % (round % 2 == 0 ? 300 : writes.most_bytes() + 1), ' ');
      for (char& c : part) c = static_cast<char>(random());
      std::memcpy(writes.next(part.size()).data(), part.data(), part.size());
      expected += part;
    }
    writes.write(expected);  // longer than the buffer
    expected += expected;
    writes.finish();
    file->close();
    std::ifstream in(path, std::ios::binary);
    EXPECT_TRUE(std::string(std::istreambuf_iterator<char>(in), {}) == expected) << round;
  }
}

}  // namespace
}  // namespace shardwise::detail
