#pragma once

#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>

#include <csignal>
#include <string>
#include <vector>

extern char** environ;

namespace shardwise {

/// Runs a program with its arguments; true where it ended by itself and well, false where it was
/// killed. Expects one of the two.
inline bool ends_by_itself(std::vector<std::string> command) {
  std::vector<char*> arguments;
  for (std::string& argument : command) arguments.push_back(argument.data());
  arguments.push_back(nullptr);
  pid_t child = 0;
  EXPECT_EQ(posix_spawn(&child, arguments[0], nullptr, nullptr, arguments.data(), environ), 0);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  const bool ended = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  EXPECT_TRUE(ended || (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)) << status;
  return ended;
}

}  // namespace shardwise
