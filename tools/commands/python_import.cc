#include "commands/python_import.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "interrupt.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/checkpoint/staged_output.h"
#include "shardwise/shard/dtype.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/file.h"

namespace shardwise::tools {
namespace {

namespace fs = std::filesystem;

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

// Of what it prints. A tensor takes about 100 bytes of a description.
constexpr std::size_t kMostPrinted = std::size_t{1} << 30;

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
  std::array<char, 1 << 16> buffer{};
  for (ssize_t count = 0; (count = read(ends[0], buffer.data(), buffer.size())) != 0;) {
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) break;
    text.append(buffer.data(), static_cast<std::size_t>(count));
    if (text.size() > kMostPrinted) text.erase(0, text.size() / 2);
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

/// What the package prints last. Without a target it describes the source.
std::string run_package(std::string_view format, const fs::path& source, const fs::path& target) {
  const char* const named = std::getenv("SHARDWISE_PYTHON");
  const std::string python = named != nullptr && *named != '\0' ? named : "python3";
  // No module is taken from the folder that the user is in.
  setenv("PYTHONSAFEPATH", "1", 1);
  const std::string from = fs::absolute(source).string();
  std::vector<std::string> words{python, "-m", "shardwise._import_command", std::string(format),
                                 from};
  if (!target.empty()) words.push_back(fs::absolute(target).string());
  Answer answer = run_and_read(std::move(words));
  InterruptNote::check(target.empty() ? "read" : "import");
  if (WIFEXITED(answer.status) && WEXITSTATUS(answer.status) == 0) return std::move(answer.last);
  const auto said = nlohmann::json::parse(answer.last, nullptr, false);
  if (said.is_object() && said.contains("code") && said["code"].is_string() &&
      said.contains("message") && said["message"].is_string()) {
    throw Error(code_of(said["code"]), said["message"].get<std::string>());
  }
  const char* const package = format == "dcp" ? "torch" : "orbax-checkpoint";
  throw Error(
      ErrorCode::unsupported,
      fmt::format(
          "{} {}: the Python package reads this format, and {} has ended with \"{}\"; "
          "needed is a python3 with shardwise and {}, which SHARDWISE_PYTHON may name. In "
          "such a one `python3 -c 'import shardwise; shardwise.import_{}(\"{}\", \"NAME\")'` "
          "makes a checkpoint of it, too",
          target.empty() ? "read" : "import", source.string(), python, answer.last, package, format,
          from));
}

/// One of [["w", "f32", [2, 3]], ..]. Throws if it is none.
TensorInfo described_tensor(const nlohmann::json& row) {
  TensorInfo info;
  info.name = row.at(0).get<std::string>();
  info.dtype = parse_dtype(row.at(1).get<std::string>());
  for (const auto& extent : row.at(2).get_ref<const nlohmann::json::array_t&>()) {
    if (!extent.is_number_unsigned() ||
        extent.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max()) {
      throw Error(ErrorCode::corrupt, fmt::format("the extent {}", extent.dump()));
    }
    info.shape.push_back(extent.get<std::int64_t>());
  }
  info.logical_bytes = num_bytes(info.shape, size_bytes(info.dtype));
  return info;
}

/// By name.
std::vector<TensorInfo> described_tensors(const fs::path& source, const std::string& answer) {
  std::vector<TensorInfo> tensors;
  try {
    const auto said = nlohmann::json::parse(answer);
    for (const auto& row : said.get_ref<const nlohmann::json::array_t&>())
      tensors.push_back(described_tensor(row));
    std::ranges::sort(tensors, {}, &TensorInfo::name);
    const auto twice = std::ranges::adjacent_find(tensors, {}, &TensorInfo::name);
    if (twice != tensors.end()) {
      throw Error(ErrorCode::corrupt, fmt::format("the tensor {:?} twice", twice->name));
    }
  } catch (const std::exception& error) {  // nlohmann's, too
    throw Error(ErrorCode::corrupt,
                fmt::format("read {}: the Python package has given {}, needed are name, dtype and "
                            "shape of each tensor",
                            source.string(), error.what()));
  }
  return tensors;
}

class DescribedTensors final : public BoxReader {
 public:
  explicit DescribedTensors(std::vector<TensorInfo> tensors) : tensors_(std::move(tensors)) {}

  std::span<const TensorInfo> tensors() const override { return tensors_; }
  void read(std::size_t tensor, const Box& /*box*/, std::span<std::byte> /*out*/) const override {
    throw Error(ErrorCode::unsupported,
                fmt::format("read tensor {:?}: it is only described", tensors_[tensor].name));
  }

 private:
  std::vector<TensorInfo> tensors_;
};

fs::path temporary_folder(const fs::path& source) {
  std::error_code error;
  fs::path folder = fs::temp_directory_path(error);
  if (!error) return folder;
  throw Error(ErrorCode::not_found,
              fmt::format("import {}: found no folder for temporary files, needed is one, which "
                          "TMPDIR may name",
                          source.string()));
}

class ImportedTensors final : public BoxReader {
 public:
  ImportedTensors(std::string_view format, const fs::path& source, const ReadOptions& options)
      : staged_(*files_, temporary_folder(source) / fmt::format("shardwise-{}", getuid())) {
    import_by_python(format, source, staged_.place());
    reader_.emplace(staged_.place(), options);
  }

  std::span<const TensorInfo> tensors() const override { return reader_->tensors(); }
  void read(std::size_t tensor, const Box& box, std::span<std::byte> out) const override {
    InterruptNote::check("read");
    reader_->read(tensor, box, out);
  }

 private:
  const std::shared_ptr<FileSystem> files_ = posix_file_system();
  StagedOutput staged_;
  std::optional<CheckpointReader> reader_;
};

}  // namespace

void import_by_python(std::string_view format, const fs::path& source, const fs::path& target) {
  run_package(format, source, target);
}

std::unique_ptr<BoxReader> describe_by_python(std::string_view format, const fs::path& source) {
  return std::make_unique<DescribedTensors>(
      described_tensors(source, run_package(format, source, {})));
}

std::unique_ptr<BoxReader> open_by_python(std::string_view format, const fs::path& source,
                                          const ReadOptions& options) {
  return std::make_unique<ImportedTensors>(format, source, options);
}

int run_with_python(const std::function<int()>& command) {
  const InterruptNote interrupt;
  try {
    return command();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::cancelled && InterruptNote::has_come()) InterruptNote::end();
    throw;
  }
}

}  // namespace shardwise::tools
