#include "commands/python/import.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "commands/python/package.h"
#include "foreign_format.h"
#include "interrupt.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/checkpoint/staged_output.h"
#include "shardwise/shard/dtype.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/file.h"

namespace shardwise::tools {
namespace {

namespace fs = std::filesystem;

/// The last line that the package prints. Without a target it describes the source.
std::string run_import_package(std::string_view format, const fs::path& source,
                               const fs::path& target, const Selection& selection) {
  const std::string from = fs::absolute(source).string();
  std::vector<std::string> arguments{std::string(format), from};
  if (!target.empty()) {
    arguments.push_back(fs::absolute(target).string());
    const nlohmann::json said{{"select", selection.select}, {"exclude", selection.exclude}};
    arguments.push_back(said.dump());
  }
  const std::string_view operation = target.empty() ? "read" : "import";
  return run_package("shardwise._convert.import_command", std::move(arguments), operation,
                     [&](const std::string& end) {
                       return fmt::format(
                           "{} {}: the Python package reads this format, and {}; needed is a "
                           "python3 with shardwise and {}, which SHARDWISE_PYTHON may name. In "
                           "such a one `python3 -c 'import shardwise; shardwise.import_{}(\"{}\", "
                           "\"NAME\")'` makes a checkpoint of it, too",
                           operation, source.string(), end,
                           format == "dcp" ? "torch" : "orbax-checkpoint", format, from);
                     });
}

/// One of [["w", "f32", [2, 3]], ..]; a dtype that this library lacks is said as its format has it.
/// Throws for any other value.
TensorInfo described_tensor(const nlohmann::json& row) {
  TensorInfo info;
  info.name = row.at(0).get<std::string>();
  const auto dtype = row.at(1).get<std::string>();
  if (dtype.empty()) throw Error(ErrorCode::corrupt, "a dtype without a name");
  const auto known = std::ranges::find(all_dtypes(), dtype, [](DType one) { return name(one); });
  if (known == all_dtypes().end()) {
    info.foreign_dtype = dtype;
  } else {
    info.dtype = *known;
  }
  for (const auto& extent : row.at(2).get_ref<const nlohmann::json::array_t&>()) {
    if (!extent.is_number_unsigned() ||
        extent.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max()) {
      throw Error(ErrorCode::corrupt, fmt::format("the extent {}", extent.dump()));
    }
    info.shape.push_back(extent.get<std::int64_t>());
  }
  const std::size_t bytes = num_bytes(info.shape, size_bytes(info.dtype));
  info.logical_bytes = info.foreign_dtype.empty() ? bytes : 0;
  return info;
}

/// The tensors of the child's description, sorted by name.
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

class ImportedTensors final : public BoxReader {
 public:
  ImportedTensors(std::string_view format, const fs::path& source, const ReadOptions& options,
                  const Selection& selection)
      : staged_(*files_, temporary_place(source)) {
    import_by_python(format, source, staged_.place(), selection);
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

fs::path temporary_place(const fs::path& source) {
  std::error_code error;
  const fs::path folder = fs::temp_directory_path(error);
  if (!error) return folder / fmt::format("shardwise-{}", getuid());
  throw Error(ErrorCode::not_found,
              fmt::format("import {}: found no folder for temporary files, needed is one, which "
                          "TMPDIR may name",
                          source.string()));
}

void import_by_python(std::string_view format, const fs::path& source, const fs::path& target,
                      const Selection& selection) {
  run_import_package(format, source, target, selection);
}

std::unique_ptr<BoxReader> describe_by_python(std::string_view format, const fs::path& source) {
  return std::make_unique<DescribedTensors>(
      described_tensors(source, run_import_package(format, source, {}, {})));
}

std::unique_ptr<BoxReader> open_by_python(std::string_view format, const fs::path& source,
                                          const ReadOptions& options, const Selection& selection) {
  return std::make_unique<ImportedTensors>(format, source, options, selection);
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

int run_reading(std::initializer_list<std::string_view> paths,
                const std::function<int()>& command) {
  const auto is_pythons = [](std::string_view path) { return !python_format(path).empty(); };
  return std::ranges::any_of(paths, is_pythons) ? run_with_python(command) : command();
}

}  // namespace shardwise::tools
