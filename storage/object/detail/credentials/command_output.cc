#include "shardwise/storage/object/detail/credentials/command_output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>

#include "shardwise/shard/error.h"
#include "shardwise/shard/text.h"

namespace shardwise::detail {
namespace {

/// A shell in a process group of its own, and the pipe that it writes to.
class ShellCommand {
 public:
  explicit ShellCommand(const std::string& command) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) refuse(std::strerror(errno));
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    std::string shell = "/bin/sh", option = "-c", text = command;
    char* const arguments[] = {shell.data(), option.data(), text.data(), nullptr};
    const int error =
        posix_spawn(&child_, shell.c_str(), &actions, &attributes, arguments, environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    ::close(ends[1]);
    output_ = ends[0];
    if (error != 0) {
      child_ = -1;
      ::close(output_);
      refuse(std::strerror(error));
    }
  }
  ~ShellCommand() {
    ::close(output_);
    if (child_ <= 0) return;
    ::kill(-child_, SIGKILL);
    wait();
  }
  ShellCommand(const ShellCommand&) = delete;
  ShellCommand& operator=(const ShellCommand&) = delete;

  [[noreturn]] static void refuse(std::string_view found) {
    throw Error(ErrorCode::io, fmt::format("run credential_process: found {}, needed a command "
                                           "that writes keys as JSON",
                                           found));
  }

  int output() const { return output_; }

  /// The status as waitpid() has it.
  int wait() {
    int status = 0;
    while (::waitpid(child_, &status, 0) < 0 && errno == EINTR) continue;
    child_ = -1;
    return status;
  }

 private:
  pid_t child_ = -1;
  int output_ = -1;
};

}  // namespace

std::string command_output(const std::string& command, std::size_t most_bytes, int most_ms) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + std::chrono::milliseconds(most_ms);
  ShellCommand shell(command);
  std::string text;
  for (;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd ready = {.fd = shell.output(), .events = POLLIN, .revents = 0};
    const int count = left > 0 ? ::poll(&ready, 1, static_cast<int>(left)) : 0;
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) ShellCommand::refuse(fmt::format("no end after {} ms", most_ms));
    std::array<char, 4096> part;
    const ssize_t n = ::read(shell.output(), part.data(), part.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) ShellCommand::refuse(std::strerror(errno));
    if (n == 0) break;
    text.append(part.data(), static_cast<std::size_t>(n));
    if (text.size() > most_bytes) {
      ShellCommand::refuse("more than " + human_bytes(most_bytes) + " of output");
    }
  }
  const int status = shell.wait();
  if (!WIFEXITED(status)) ShellCommand::refuse("that it was killed");
  if (WEXITSTATUS(status) != 0) {
    ShellCommand::refuse(fmt::format("exit status {}", WEXITSTATUS(status)));
  }
  return text;
}

}  // namespace shardwise::detail
