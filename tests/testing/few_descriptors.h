#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstddef>
#include <vector>

namespace shardwise {

/// As long as it lives, this process has only that many free descriptors. Thread-compatible.
class FewDescriptors {
 public:
  explicit FewDescriptors(std::size_t free) {
    EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &usual_), 0);
    rlimit less = usual_;
    less.rlim_cur = 256;
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &less), 0);
    for (int fd = 0; (fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;) taken_.push_back(fd);
    for (; free > 0; --free) {
      ::close(taken_.back());
      taken_.pop_back();
    }
  }
  ~FewDescriptors() {
    ::setrlimit(RLIMIT_NOFILE, &usual_);
    for (const int fd : taken_) ::close(fd);
  }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;

 private:
  rlimit usual_{};
  std::vector<int> taken_;
};

}  // namespace shardwise
