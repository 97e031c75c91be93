#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "shardwise/checkpoint/reader.h"
#include "shardwise/convert/detail/aliased_tensors.h"
#include "shardwise/convert/detail/model_source.h"
#include "shardwise/convert/detail/safetensors/safetensors_index.h"
#include "shardwise/convert/detail/string_map.h"
#include "shardwise/convert/detail/write/aligned_writes.h"
#include "shardwise/convert/detail/write/export_format.h"
#include "shardwise/convert/detail/write/model_folder.h"
#include "shardwise/convert/detail/write/new_target.h"
#include "shardwise/convert/detail/zip_member.h"
#include "shardwise/convert/model.h"
#include "shardwise/reshape/edits.h"
#include "shardwise/runtime/stopwatch.h"
#include "shardwise/shard/box.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/file.h"
#include "shardwise/storage/utf8.h"

namespace shardwise {
namespace {

namespace fs = std::filesystem;

// Scratch of a cast: the pool would not keep a larger buffer from one read to the next.
constexpr std::size_t kMostScratchBytes = std::size_t{4} << 20;
constexpr std::size_t kLeastExportBytes = std::size_t{8} << 20;

/// A file that is going to be written.
struct PlannedFile {
  std::string name;
  std::vector<std::size_t> tensors;  ///< in the order of the file
  std::size_t data_bytes = 0;
};

[[noreturn]] void refuse_export(ErrorCode code, const fs::path& target, const std::string& what) {
  throw Error(code, fmt::format("export to {}: {}", target.string(), what));
}

/// Throws one error for all tensors that cannot be written and for repeated names.
void check_tensors(const detail::ExportFormat& format, std::span<const TensorInfo> tensors,
                   const fs::path& target) {
  std::map<std::string_view, std::vector<std::string>> by_dtype;
  std::vector<std::string_view> names;
  for (const TensorInfo& tensor : tensors) {
    names.push_back(tensor.name);
    check_readable(tensor, fmt::format("export to {}", target.string()));
    if (!format.has_dtype(tensor.dtype)) {
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
                  fmt::format("{} has no dtype {}", format.name(), fmt::join(lines, "; no ")));
  }
  std::sort(names.begin(), names.end());
  if (const auto twice = std::adjacent_find(names.begin(), names.end()); twice != names.end()) {
    refuse_export(ErrorCode::invalid_argument, target,
                  fmt::format("tensor {} is there twice", shown(*twice)));
  }
  if (const std::string problem = format.problem_of(tensors); !problem.empty()) {
    refuse_export(ErrorCode::unsupported, target, problem);
  }
}

/// The format that the options or the target's name choose.
const detail::ExportFormat& format_of(const ExportOptions& options, const fs::path& target) {
  std::string known;
  const detail::ExportFormat* found = nullptr;
  for (const detail::ExportFormat* const format : detail::export_formats()) {
    const bool ends = target.extension() == format->suffix();
    if (ends && !options.format.empty() && options.format != format->name()) {
      refuse_export(ErrorCode::invalid_argument, target,
                    fmt::format("the format is {}, but its name ends in {}", options.format,
                                format->suffix()));
    }
    known += fmt::format("{}{}", known.empty() ? "" : ", ", format->name());
    if (options.format.empty() ? ends : options.format == format->name()) found = format;
  }
  if (found != nullptr) return *found;
  if (options.format.empty()) return *detail::export_formats().front();
  refuse_export(ErrorCode::invalid_argument, target,
                fmt::format("format {:?} is not known, needed is one of {}; the command and Python "
                            "write dcp and orbax, too",
                            options.format, known));
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

/// Plans files one after the other; within each, tensors have the format's order.
std::vector<PlannedFile> plan_files(const detail::ExportFormat& format,
                                    std::span<const TensorInfo> tensors, std::size_t most_bytes) {
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
    files[f].name = files.size() == 1 ? fmt::format("model{}", format.suffix())
                                      : fmt::format("model-{:05}-of-{:05}{}", f + 1, files.size(),
                                                    format.suffix());
    format.order(tensors, files[f].tensors);
  }
  return files;
}

std::unique_ptr<detail::FileFrame> frame_of(const detail::ExportFormat& format,
                                            const PlannedFile& file,
                                            std::span<const TensorInfo> tensors,
                                            const detail::StringMap& metadata) {
  std::vector<TensorInfo> own;
  for (const std::size_t t : file.tensors) own.push_back(tensors[t]);
  return format.frame(own, metadata);
}

constexpr std::string_view kOutputLayer = "lm_head.weight";

bool are_equal(const BoxReader& source, std::size_t first, std::size_t second) {
  const TensorInfo& info = source.tensors()[first];
  const std::size_t element_bytes = size_bytes(info.dtype);
  std::vector<std::byte> one, other;
  bool equal = true;
  for_each_slab(Box::whole(info.shape), element_bytes, kMostScratchBytes / 2, [&](const Box& slab) {
    if (!equal) return;
    one.resize(num_bytes(slab.shape(), element_bytes));
    other.resize(one.size());
    source.read(first, slab, one);
    source.read(second, slab, other);
    equal = one == other;
  });
  return equal;
}

/// True if the tensors have an output layer that equals an embedding.
bool has_tied_output(const BoxReader& source) {
  const std::span<const TensorInfo> all = source.tensors();
  const auto output = std::ranges::find(all, kOutputLayer, &TensorInfo::name);
  if (output == all.end()) return false;
  const auto number = [&all](const TensorInfo& tensor) {
    return static_cast<std::size_t>(&tensor - all.data());
  };
  return std::ranges::any_of(all, [&](const TensorInfo& tensor) {
    static constexpr std::string_view kEmbeddings[] = {"embed_tokens.weight", "wte.weight",
                                                       "embed_in.weight", "shared.weight",
                                                       "word_embeddings.weight"};
    return std::ranges::any_of(
               kEmbeddings,
               [&tensor](std::string_view ending) { return tensor.name.ends_with(ending); }) &&
           tensor.dtype == output->dtype && tensor.shape == output->shape &&
           are_equal(source, number(tensor), number(*output));
  });
}

/// The tensors after edits. Does not own the original, which outlives it.
std::shared_ptr<const BoxReader> edited(const BoxReader& original, const fs::path& target,
                                        const ExportOptions& options,
                                        const std::optional<detail::ModelFolder>& folder) {
  const std::size_t scratch = std::min(options.memory_budget_bytes / 8, kMostScratchBytes);
  const std::string operation = fmt::format("export to {}", target.string());
  auto source = std::make_shared<const EditedTensors>(
      std::shared_ptr<const BoxReader>(std::shared_ptr<void>(), &original), options.edits,
      operation, scratch);
  if (!folder || !folder->ties_embeddings || !has_tied_output(*source)) return source;
  return std::make_shared<const EditedTensors>(
      source, TensorEdits{.exclude = {std::string(kOutputLayer)}}, operation, scratch);
}

/// True for files that an export with a config writes.
bool is_model_file(const fs::path& path) {
  const std::string name = path.filename().string();
  return detail::is_exported_name(name) || detail::is_config_name(name);
}

/// Transformers expects the key "format" in the metadata.
detail::StringMap with_format(detail::StringMap metadata) {
  if (!detail::find_value(metadata, "format")) metadata.emplace_back("format", "pt");
  return metadata;
}

/// Writes planned files of one source, and reports progress.
class ExportRun {
 public:
  ExportRun(const BoxReader& source, const ExportOptions& options, std::size_t total_bytes)
      : source_(source),
        options_(options),
        writes_(std::min(options.memory_budget_bytes / (options.edits.keeps_elements() ? 2 : 4),
                         std::size_t{32} << 20)),
        progress_{0, total_bytes} {}

  /// Returns the file's size.
  std::size_t write(detail::NewTarget& target, const PlannedFile& planned, detail::FileFrame& frame,
                    bool needs_crc) {
    return write_file(target, planned.name, static_cast<std::size_t>(frame.bytes()), [&] {
      writes_.write(frame.begin());
      for (std::size_t i = 0; i < planned.tensors.size(); ++i) {
        writes_.write(frame.before(i));
        writes_.write(frame.after(i, write_tensor(planned.tensors[i], needs_crc)));
      }
      writes_.write(frame.end());
    });
  }

  std::size_t write_text(detail::NewTarget& target, const std::string& name,
                         const std::string& text) {
    return write_file(target, name, text.size(), [&] { writes_.write(text); });
  }

  /// Writes the config, which names the dtype of the tensors, and its folder's other files.
  std::size_t write_configs(detail::NewTarget& target, const detail::ModelFolder& folder,
                            FileSystem& file_system) {
    const std::string config = detail::with_dtype_of(folder.config, source_.tensors());
    std::size_t bytes = write_text(target, std::string(detail::kConfigName), config);
    for (const std::string& name : folder.files) {
      bytes += copy(target, name, *detail::open_linked(file_system, options_.config_from / name));
    }
    return bytes;
  }

  std::size_t copy(detail::NewTarget& target, const std::string& name, File& from) {
    const auto size = static_cast<std::size_t>(from.size());
    return write_file(target, name, size, [&] {
      for (std::size_t at = 0; at < size;) {
        const std::span<std::byte> part = writes_.next(std::min(size - at, writes_.most_bytes()));
        from.read_at(at, part.data(), part.size());
        at += part.size();
      }
    });
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

  /// Returns the elements' checksum, if it is needed.
  std::uint32_t write_tensor(std::size_t tensor, bool needs_crc) {
    const TensorInfo& info = source_.tensors()[tensor];
    const std::size_t element_bytes = size_bytes(info.dtype);
    std::uint32_t crc = 0;
    for_each_slab(Box::whole(info.shape), element_bytes, writes_.most_bytes(),
                  [&](const Box& slab) {
                    const std::size_t bytes = num_bytes(slab.shape(), element_bytes);
                    const std::span<std::byte> out = writes_.next(bytes);
                    source_.read(tensor, slab, out);
                    if (needs_crc) crc = detail::zip_crc(crc, out);
                    progress_.done_bytes += bytes;
                    if (options_.progress) options_.progress(progress_);
                  });
    return crc;
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
  const auto file_system = options.file_system ? options.file_system : posix_file_system();
  const detail::ExportFormat& format = format_of(options, target);
  const bool to_file = target.extension() == format.suffix();
  std::optional<detail::ModelFolder> folder;
  if (!options.config_from.empty()) {
    if (to_file || &format != &detail::safetensors_export()) {
      refuse_export(ErrorCode::invalid_argument, target, "a config needs a folder of safetensors");
    }
    folder = detail::look_at_model_folder(*file_system, options.config_from);
  }
  const std::shared_ptr<const BoxReader> source = edited(original, target, options, folder);
  const std::span<const TensorInfo> tensors = source->tensors();
  check_tensors(format, tensors, target);
  const std::vector<PlannedFile> files = plan_files(format, tensors, options.max_shard_bytes);
  if (to_file && files.size() > 1) {
    refuse_export(ErrorCode::invalid_argument, target,
                  fmt::format("{} files are needed where each has at most {} bytes, so the target "
                              "is a folder, whose name does not end in {}",
                              files.size(), options.max_shard_bytes, format.suffix()));
  }
  ExportStats stats;
  std::vector<std::unique_ptr<detail::FileFrame>> frames;
  for (const PlannedFile& file : files) {
    frames.push_back(frame_of(format, file, tensors, folder ? with_format(metadata) : metadata));
    stats.logical_bytes += file.data_bytes;
  }
  const auto check = [&] { static_cast<void>(ModelReader(target, file_system)); };
  if (options.existing == Existing::skip && detail::NewTarget::skips(*file_system, target, check)) {
    return {};
  }
  detail::NewTarget place(
      *file_system, target, to_file ? detail::TargetKind::file : detail::TargetKind::folder,
      options.existing, folder ? detail::NewTarget::IsExported(is_model_file) : nullptr);
  ExportRun run(*source, options, stats.logical_bytes);
  detail::WeightMap weight_map;
  for (std::size_t f = 0; f < files.size(); ++f) {
    stats.file_bytes += run.write(place, files[f], *frames[f], format.needs_crc());
    stats.files.push_back(to_file ? target : target / files[f].name);
    for (const std::size_t t : files[f].tensors) weight_map[tensors[t].name] = files[f].name;
  }
  if (files.size() > 1) {
    const std::string name = fmt::format("model{}{}", format.suffix(), detail::kIndexEnding);
    stats.file_bytes +=
        run.write_text(place, name, detail::index_text(weight_map, stats.logical_bytes));
  }
  if (folder) stats.file_bytes += run.write_configs(place, *folder, *file_system);
  place.publish();
  stats.total_seconds = watch.seconds();
  return stats;
}

}  // namespace

ExportStats export_model(const BoxReader& source, const fs::path& target,
                         const ExportOptions& options) {
  return write_files(source, target, options, metadata_of(options, target));
}

ExportStats export_model(const fs::path& source, const fs::path& target,
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
  const detail::AliasedTensors all(checkpoint, detail::parse_aliases(checkpoint.objects_json()));
  return write_files(all, target, options, metadata);
}

}  // namespace shardwise
