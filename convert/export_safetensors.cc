#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <string_view>
#include <utility>

#include "shardwise/checkpoint/edits.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/convert/detail/aligned_writes.h"
#include "shardwise/convert/detail/new_target.h"
#include "shardwise/convert/detail/safetensors_dtypes.h"
#include "shardwise/convert/detail/safetensors_header.h"
#include "shardwise/convert/detail/safetensors_index.h"
#include "shardwise/convert/safetensors.h"
#include "shardwise/runtime/stopwatch.h"
#include "shardwise/shard/box.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/file.h"
#include "shardwise/storage/utf8.h"

namespace shardwise {
namespace {

namespace fs = std::filesystem;

// Of a cast: more of it would not be kept from one read to the next.
constexpr std::size_t kMostScratchBytes = std::size_t{4} << 20;
constexpr std::size_t kLeastExportBytes = std::size_t{8} << 20;

/// A file that is going to be written.
struct PlannedFile {
  std::string name;
  std::vector<std::size_t> tensors;  ///< as they stand in it
  std::size_t data_bytes = 0;
};

[[noreturn]] void refuse_export(ErrorCode code, const fs::path& target, const std::string& what) {
  throw Error(code, fmt::format("export to {}: {}", target.string(), what));
}

/// Throws one error for all tensors that cannot be written, and for names that are there twice.
void check_tensors(std::span<const TensorInfo> tensors, const fs::path& target) {
  std::map<std::string_view, std::vector<std::string>> by_dtype;
  std::vector<std::string_view> names;
  for (const TensorInfo& tensor : tensors) {
    names.push_back(tensor.name);
    if (!detail::safetensors_dtype(tensor.dtype)) {
      by_dtype[name(tensor.dtype)].push_back(shown(tensor.name));
    }
  }
  std::vector<std::string> lines;
  lines.reserve(by_dtype.size());
  for (const auto& [dtype, of_it] : by_dtype) {
    lines.push_back(fmt::format("{} of {}", dtype, fmt::join(of_it, ", ")));
  }
  if (!lines.empty()) {
    refuse_export(ErrorCode::unsupported, target,
                  fmt::format("safetensors has no dtype {}", fmt::join(lines, "; no ")));
  }
  std::sort(names.begin(), names.end());
  if (std::binary_search(names.begin(), names.end(), detail::kMetadataName)) {
    refuse_export(ErrorCode::unsupported, target,
                  "a tensor is called __metadata__, which safetensors keeps for itself");
  }
  if (const auto twice = std::adjacent_find(names.begin(), names.end()); twice != names.end()) {
    refuse_export(ErrorCode::invalid_argument, target,
                  fmt::format("tensor {} is there twice", shown(*twice)));
  }
}

detail::StringMap metadata_of(const ExportOptions& options, const fs::path& target) {
  auto metadata = detail::parse_string_map(options.metadata);
  if (!metadata) {
    refuse_export(
        ErrorCode::invalid_argument, target,
        fmt::format("metadata is {}, needed is a JSON object of strings", shown(options.metadata)));
  }
  return *std::move(metadata);
}

/// Files in which tensors stand by name, filled one after the other.
std::vector<PlannedFile> plan_files(std::span<const TensorInfo> tensors, std::size_t most_bytes) {
  std::vector<std::size_t> by_name(tensors.size());
  for (std::size_t t = 0; t < by_name.size(); ++t) by_name[t] = t;
  std::sort(by_name.begin(), by_name.end(),
            [&](std::size_t a, std::size_t b) { return tensors[a].name < tensors[b].name; });
  std::vector<PlannedFile> files(1);
  for (const std::size_t t : by_name) {
    const std::size_t bytes = num_bytes(tensors[t].shape, size_bytes(tensors[t].dtype));
    const bool is_full = most_bytes != 0 && !files.back().tensors.empty() &&
                         bytes > most_bytes - std::min(most_bytes, files.back().data_bytes);
    if (is_full) files.emplace_back();
    files.back().tensors.push_back(t);
    files.back().data_bytes += bytes;
  }
  for (std::size_t f = 0; f < files.size(); ++f) {
    files[f].name = files.size() == 1
                        ? "model.safetensors"
                        : fmt::format("model-{:05}-of-{:05}.safetensors", f + 1, files.size());
    // As the safetensors library does; by name within one dtype.
    const auto rank = [&](std::size_t t) {
      return detail::safetensors_dtype(tensors[t].dtype).value().rank;
    };
    std::stable_sort(files[f].tensors.begin(), files[f].tensors.end(),
                     [&](std::size_t a, std::size_t b) { return rank(a) > rank(b); });
  }
  return files;
}

std::string header_of(const PlannedFile& file, std::span<const TensorInfo> tensors,
                      const detail::StringMap& metadata) {
  std::vector<detail::SafetensorsEntry> entries;
  std::uint64_t at = 0;
  for (const std::size_t t : file.tensors) {
    const std::uint64_t end = at + num_bytes(tensors[t].shape, size_bytes(tensors[t].dtype));
    entries.push_back({tensors[t].name, tensors[t].dtype, tensors[t].shape, at, end});
    at = end;
  }
  return detail::header_text(entries, metadata);
}

/// Writes planned files of one source, and says how far it is.
class ExportRun {
 public:
  ExportRun(const BoxReader& source, const ExportOptions& options, std::size_t total_bytes)
      : source_(source),
        options_(options),
        writes_(std::min(options.memory_budget_bytes / (options.edits.keeps_elements() ? 2 : 4),
                         std::size_t{32} << 20)),
        progress_{0, total_bytes} {}

  /// Returns the file's size.
  std::size_t write(detail::NewTarget& target, const PlannedFile& planned,
                    const std::string& header) {
    return write_file(target, planned.name, header.size() + planned.data_bytes, [&] {
      writes_.write(header);
      for (const std::size_t t : planned.tensors) write_tensor(t);
    });
  }

  std::size_t write_index(detail::NewTarget& target, const std::string& text) {
    return write_file(target, "model" + std::string(detail::kIndexSuffix), text.size(),
                      [&] { writes_.write(text); });
  }

 private:
  template <class Body>
  std::size_t write_file(detail::NewTarget& target, const std::string& name, std::size_t size,
                         Body&& write_content) {
    const std::unique_ptr<File> file = target.create(name);
    file->resize(size);
    writes_.start(*file);
    write_content();
    writes_.finish();
    file->sync();
    file->close();
    return size;
  }

  void write_tensor(std::size_t tensor) {
    const TensorInfo& info = source_.tensors()[tensor];
    const std::size_t element_bytes = size_bytes(info.dtype);
    for_each_slab(Box::whole(info.shape), element_bytes, writes_.most_bytes(),
                  [&](const Box& slab) {
                    const std::size_t bytes = num_bytes(slab.shape(), element_bytes);
                    source_.read(tensor, slab, writes_.next(bytes));
                    progress_.done_bytes += bytes;
                    if (options_.progress) options_.progress(progress_);
                  });
  }

  const BoxReader& source_;
  const ExportOptions& options_;
  detail::AlignedWrites writes_;
  Progress progress_;
};

ExportStats write_files(const BoxReader& original, const fs::path& target,
                        const ExportOptions& options, const detail::StringMap& metadata) {
  const Stopwatch watch;
  if (options.memory_budget_bytes < kLeastExportBytes) {
    refuse_export(ErrorCode::invalid_argument, target,
                  fmt::format("the memory budget is {} bytes, needed are at least {}",
                              options.memory_budget_bytes, kLeastExportBytes));
  }
  // Not owned: the caller's, who waits.
  const EditedTensors source(std::shared_ptr<const BoxReader>(std::shared_ptr<void>(), &original),
                             options.edits, fmt::format("export to {}", target.string()),
                             std::min(options.memory_budget_bytes / 8, kMostScratchBytes));
  const std::span<const TensorInfo> tensors = source.tensors();
  check_tensors(tensors, target);
  const std::vector<PlannedFile> files = plan_files(tensors, options.max_shard_bytes);
  const bool to_file = target.extension() == detail::kFileSuffix;
  if (to_file && files.size() > 1) {
    refuse_export(ErrorCode::invalid_argument, target,
                  fmt::format("{} files are needed where each has at most {} bytes, so the target "
                              "is a folder, whose name does not end in {}",
                              files.size(), options.max_shard_bytes, detail::kFileSuffix));
  }
  ExportStats stats;
  std::vector<std::string> headers;
  for (const PlannedFile& file : files) {
    headers.push_back(header_of(file, tensors, metadata));
    stats.logical_bytes += file.data_bytes;
  }
  const auto file_system = options.file_system ? options.file_system : posix_file_system();
  if (options.existing == Existing::skip && detail::NewTarget::is_there(*file_system, target)) {
    return {};
  }
  detail::NewTarget place(*file_system, target,
                          to_file ? detail::TargetKind::file : detail::TargetKind::folder,
                          options.existing);
  ExportRun run(source, options, stats.logical_bytes);
  detail::WeightMap weight_map;
  for (std::size_t f = 0; f < files.size(); ++f) {
    stats.file_bytes += run.write(place, files[f], headers[f]);
    stats.files.push_back(to_file ? target : target / files[f].name);
    for (const std::size_t t : files[f].tensors) weight_map[tensors[t].name] = files[f].name;
  }
  if (files.size() > 1) {
    stats.file_bytes += run.write_index(place, detail::index_text(weight_map, stats.logical_bytes));
  }
  place.publish();
  stats.total_seconds = watch.seconds();
  return stats;
}

}  // namespace

ExportStats export_safetensors(const BoxReader& source, const fs::path& target,
                               const ExportOptions& options) {
  return write_files(source, target, options, metadata_of(options, target));
}

ExportStats export_safetensors(const fs::path& source, const fs::path& target,
                               const ExportOptions& options) {
  ReadOptions read;
  read.memory_budget_bytes = options.memory_budget_bytes / 2;
  read.threads = options.threads;
  read.file_system = options.file_system;
  const CheckpointReader checkpoint(source, read);
  detail::StringMap metadata = metadata_of(options, target);
  detail::StringMap own = detail::metadata_of(checkpoint.user_json());
  std::erase_if(metadata, [&own](const auto& pair) { return detail::find_value(own, pair.first); });
  std::move(own.begin(), own.end(), std::back_inserter(metadata));
  return write_files(checkpoint, target, options, metadata);
}

}  // namespace shardwise
