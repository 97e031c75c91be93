#include "commands/python_import.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <vector>

#include "interrupt.h"
#include "shardwise/shard/error.h"

namespace shardwise::tools {
namespace {

struct Answer {
  int status = 0;    ///< as waitpid gives it
  std::string last;  ///< line that it has printed
};

[[noreturn]] void run_child(const std::vector<char*>& words, int output) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  dup2(output, STDOUT_FILENO);
  dup2(output, STDERR_FILENO);
  execvp(words[0], words.data());
  const std::string problem = std::string(words[0]) + ": " + std::strerror(errno) + "\n";
  (void)!write(STDERR_FILENO, problem.data(), problem.size());
  constexpr int kNotRun = 127;
  _exit(kNotRun);
}

/// The last line that is not empty.
std::string last_line(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text.substr(text.rfind('\n') + 1);
}

Answer run_and_read(std::vector<std::string> words) {
  const auto check = [](bool is_done) {
    if (!is_done) throw std::system_error(errno, std::generic_category(), "run python3");
  };
  std::vector<char*> arguments;
  arguments.reserve(words.size() + 1);
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  std::array<int, 2> ends{};
  check(pipe2(ends.data(), O_CLOEXEC) == 0);
  const pid_t child = fork();
  if (child == 0) run_child(arguments, ends[1]);
  close(ends[1]);
  std::string text;
  constexpr std::size_t kMostKept = std::size_t{1} << 16;
  std::array<char, 4096> buffer{};
  for (ssize_t count = 0; (count = read(ends[0], buffer.data(), buffer.size())) != 0;) {
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) break;
    text.append(buffer.data(), static_cast<std::size_t>(count));
    if (text.size() > 2 * kMostKept) text.erase(0, text.size() - kMostKept);
  }
  close(ends[0]);
  check(child > 0);
  Answer answer;
  while (waitpid(child, &answer.status, 0) < 0) check(errno == EINTR);
  answer.last = last_line(std::move(text));
  return answer;
}

ErrorCode code_of(const std::string& text) {
  for (int code = 0; code <= static_cast<int>(ErrorCode::cancelled); ++code) {
    if (name(static_cast<ErrorCode>(code)) == text) return static_cast<ErrorCode>(code);
  }
  return ErrorCode::unsupported;
}

}  // namespace

void import_by_python(std::string_view format, const std::filesystem::path& source,
                      const std::filesystem::path& target) {
  const char* const named = std::getenv("SHARDWISE_PYTHON");
  const std::string python = named != nullptr && *named != '\0' ? named : "python3";
  // No module is taken from the folder that the user is in.
  setenv("PYTHONSAFEPATH", "1", 1);
  const std::string from = std::filesystem::absolute(source).string();
  const Answer answer =
      run_and_read({python, "-m", "shardwise._import_command", std::string(format), from,
                    std::filesystem::absolute(target).string()});
  InterruptNote::check("import");
  if (WIFEXITED(answer.status) && WEXITSTATUS(answer.status) == 0) return;
  const auto said = nlohmann::json::parse(answer.last, nullptr, false);
  if (said.is_object() && said.contains("code") && said["code"].is_string() &&
      said.contains("message") && said["message"].is_string()) {
    throw Error(code_of(said["code"]), said["message"].get<std::string>());
  }
  const char* const package = format == "dcp" ? "torch" : "orbax-checkpoint";
  throw Error(
      ErrorCode::unsupported,
      fmt::format(
          "import {}: the Python package reads this format, and {} has ended with \"{}\"; "
          "needed is a python3 with shardwise and {}, which SHARDWISE_PYTHON may name. In "
          "such a one `python3 -c 'import shardwise; shardwise.import_{}(\"{}\", \"NAME\")'` "
          "makes a checkpoint of it, too",
          source.string(), python, answer.last, package, format, from));
}

}  // namespace shardwise::tools
