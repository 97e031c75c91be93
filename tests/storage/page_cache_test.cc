#include "shardwise/storage/detail/page_cache.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "testing/temp_dir.h"

namespace shardwise::detail {
namespace {

constexpr std::size_t kBytes = 1 << 16;

class PageCache : public testing::Test {
 protected:
  PageCache() {
    std::ofstream(path_) << std::string(kBytes, 'x');
    ::chmod(path_.c_str(), 0644);
    ::chmod(dir_.path().c_str(), 0755);
    fd_ = ::open(path_.c_str(), O_RDONLY);
  }
  ~PageCache() override { ::close(fd_); }

  const TempDir dir_;
  const std::filesystem::path path_ = dir_ / "file";
  int fd_ = -1;
};

TEST_F(PageCache, HoldsWhatWasWritten) {
  const PageCacheView view(fd_, kBytes);
  EXPECT_TRUE(view.holds(0));
  EXPECT_TRUE(view.holds(kBytes - 1));
  EXPECT_TRUE(view.holds(kBytes)) << "nothing is there to be fetched";
  EXPECT_TRUE(PageCacheView(fd_, 0).holds(0));
}

// To a process that neither owns a file nor may write it, mincore says that all of it is there.
TEST_F(PageCache, KnowsNothingOfFilesOfOthers) {
  if (::geteuid() != 0) {
    const int fd = ::open("/etc/passwd", O_RDONLY);
    EXPECT_FALSE(PageCacheView(fd, 1).holds(0));
    ::close(fd);
    return;
  }
  // The system call: of this thread alone.
  ASSERT_EQ(::syscall(SYS_setresuid, -1, 65534, -1), 0);
  const bool holds = PageCacheView(fd_, kBytes).holds(0);
  ASSERT_EQ(::syscall(SYS_setresuid, -1, 0, -1), 0);
  EXPECT_FALSE(holds);
}

TEST_F(PageCache, KnowsNothingOfWhatCannotBeMapped) { EXPECT_FALSE(PageCacheView(-1, 1).holds(0)); }

}  // namespace
}  // namespace shardwise::detail
