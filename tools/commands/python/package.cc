#include "commands/python/package.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

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

// The most output of the child. A tensor takes about 100 bytes of a description.
constexpr std::size_t kMostPrinted = std::size_t{1} << 30;

// Between two looks whether the user has interrupted the command.
constexpr int kLookMs = 50;

/// The output of a child.
class Output {
 public:
  explicit Output(const LineFunction& line) : line_(line) {}

  void add(std::string_view part) {
    text_ += part;
    while (line_) {
      const std::size_t end = text_.find('\n', told_);
      if (end == std::string::npos) break;
      line_(std::string_view(text_).substr(told_, end - told_));
      told_ = end + 1;
    }
    if (text_.size() > kMostPrinted) {
      const std::size_t dropped = line_ ? told_ : text_.size() / 2;
      text_.erase(0, dropped);
      told_ = 0;
    }
  }

  std::string last() && { return last_line(std::move(text_)); }

 private:
  const LineFunction& line_;
  std::string text_;
  std::size_t told_ = 0;  // where the first line begins that line_ has not got
};

/// The child is killed if the user interrupts us: it writes only to a hidden folder of ours.
void read_all(int output, pid_t child, Output& to) {
  std::array<char, 1 << 16> buffer{};
  pollfd waited{output, POLLIN, 0};
  for (bool is_killed = false;;) {
    if (!is_killed && InterruptNote::has_come()) is_killed = kill(child, SIGKILL) == 0;
    if (poll(&waited, 1, kLookMs) <= 0) continue;
    const ssize_t count = read(output, buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return;
    to.add({buffer.data(), static_cast<std::size_t>(count)});
  }
}

Answer run_and_read(std::vector<std::string> words, const LineFunction& line) {
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
  Output output(line);
  if (child > 0) read_all(ends[0], child, output);
  close(ends[0]);
  check(child > 0);
  Answer answer;
  while (waitpid(child, &answer.status, 0) < 0) check(errno == EINTR);
  answer.last = std::move(output).last();
  return answer;
}

ErrorCode code_of(const std::string& text) {
  for (int code = 0; code <= static_cast<int>(ErrorCode::cancelled); ++code) {
    if (name(static_cast<ErrorCode>(code)) == text) return static_cast<ErrorCode>(code);
  }
  return ErrorCode::unsupported;
}

}  // namespace

std::string run_package(std::string_view module, std::vector<std::string> arguments,
                        std::string_view operation, const PackageProblem& problem,
                        const LineFunction& line) {
  const char* const named = std::getenv("SHARDWISE_PYTHON");
  const std::string python = named != nullptr && *named != '\0' ? named : "python3";
  // No module is taken from the folder that the user is in.
  setenv("PYTHONSAFEPATH", "1", 1);
  std::vector<std::string> words{python, "-m", std::string(module)};
  words.insert(words.end(), arguments.begin(), arguments.end());
  Answer answer = run_and_read(std::move(words), line);
  InterruptNote::check(operation);
  if (WIFEXITED(answer.status) && WEXITSTATUS(answer.status) == 0) return std::move(answer.last);
  const auto said = nlohmann::json::parse(answer.last, nullptr, false);
  if (said.is_object() && said.contains("code") && said["code"].is_string() &&
      said.contains("message") && said["message"].is_string()) {
    throw Error(code_of(said["code"]), said["message"].get<std::string>());
  }
  throw Error(ErrorCode::unsupported,
              problem(fmt::format("{} has ended with \"{}\"", python, answer.last)));
}

}  // namespace shardwise::tools
