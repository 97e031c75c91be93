#pragma once

#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <stdexcept>
#include <string>
#include <vector>

extern char** environ;

namespace shardwise {

/// A program that runs along with the test. It prints lines on its standard output, and goes on
/// when it is told to on its standard input; where that ends, so should the program. Who destroys
/// it kills it. Thread-compatible.
class ChildProcess {
 public:
  /// It has these descriptors, too, under their numbers.
  explicit ChildProcess(std::vector<std::string> command,
                        const std::vector<int>& descriptors = {}) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
      throw std::runtime_error("no socket");
    }
    std::vector<char*> arguments;
    for (std::string& argument : command) arguments.push_back(argument.data());
    arguments.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    for (const int descriptor : descriptors) {
      posix_spawn_file_actions_adddup2(&actions, descriptor, descriptor);  // open after exec
    }
    const int error =
        posix_spawn(&child_, arguments[0], &actions, nullptr, arguments.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    ::close(ends[1]);
    socket_ = ends[0];
    if (error != 0) throw std::runtime_error("cannot run " + command[0]);
  }

  ~ChildProcess() {
    ::close(socket_);
    ::kill(child_, SIGKILL);  // dead or not, its number is its own until the next line
    ::waitpid(child_, nullptr, 0);
  }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  /// The next line that it says; waits for it. Empty where it has ended instead.
  std::string line() {
    std::string text;
    char c = 0;
    while (::recv(socket_, &c, 1, 0) == 1) {
      if (c == '\n') return text;
      text += c;
    }
    return {};
  }

  /// It may go on.
  void tell() { EXPECT_EQ(::send(socket_, "\n", 1, MSG_NOSIGNAL), 1); }

  /// Ends its input and waits until it has ended. Expects that it was not killed and did not fail.
  void finish() {
    ::shutdown(socket_, SHUT_WR);
    const siginfo_t info = wait_until_dead();
    EXPECT_TRUE(info.si_code == CLD_EXITED && info.si_status == 0) << info.si_status;
  }

  /// Waits until it has ended; its exit status, or -1 where a signal has killed it.
  int status() {
    const siginfo_t info = wait_until_dead();
    return info.si_code == CLD_EXITED ? info.si_status : -1;
  }

  /// SIGKILL. When this returns it is dead, but the system still knows its number.
  void kill() {
    ::kill(child_, SIGKILL);
    EXPECT_EQ(wait_until_dead().si_code, CLD_KILLED);
  }

 private:
  siginfo_t wait_until_dead() {
    siginfo_t info{};
    EXPECT_EQ(::waitid(P_PID, static_cast<id_t>(child_), &info, WEXITED | WNOWAIT), 0);
    return info;
  }

  pid_t child_ = 0;
  int socket_ = -1;
};

}  // namespace shardwise
