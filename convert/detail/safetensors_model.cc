#include "shardwise/convert/detail/safetensors_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <system_error>

#include "shardwise/convert/detail/foreign_format.h"
#include "shardwise/convert/detail/safetensors_header.h"
#include "shardwise/convert/detail/safetensors_index.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/utf8.h"

namespace shardwise::detail {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse_source(ErrorCode code, const fs::path& path, const std::string& what) {
  throw Error(code, fmt::format("read {}: {}", path.string(), what));
}

/// Errors of the body get the path.
template <class Body>
auto with_path(const fs::path& path, Body&& body) {
  try {
    return body();
  } catch (const Error& error) {
    throw Error(error, fmt::format("read {}: {}", path.string(), error.what()));
  }
}

std::string read_text(File& file, std::uint64_t offset, std::uint64_t size) {
  std::string text(static_cast<std::size_t>(size), '\0');
  if (size > 0) file.read_at(offset, std::as_writable_bytes(std::span(text)).data(), text.size());
  return text;
}

/// How long the header is that a file says it has, and has room for.
std::uint64_t header_bytes(File& file, const fs::path& path) {
  constexpr std::uint64_t kMagicBytes = 32;
  const std::uint64_t size = file.size();
  const std::string first = read_text(file, 0, std::min(size, kMagicBytes));
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < std::min(first.size(), kLengthBytes); ++i) {
    length |= std::uint64_t{static_cast<unsigned char>(first[i])} << (8 * i);
  }
  const bool has_room = size >= kLengthBytes && length <= size - kLengthBytes;
  if (has_room && length <= kMostHeaderBytes) return length;
  if (const std::string_view what = foreign_file(first); !what.empty()) {
    refuse_source(ErrorCode::unsupported, path,
                  fmt::format("it seems to be {}, needed is safetensors", what));
  }
  if (size < kLengthBytes) {
    refuse_source(ErrorCode::corrupt, path, fmt::format("it has {} bytes, needed are 8", size));
  }
  refuse_source(
      ErrorCode::corrupt, path,
      has_room
          ? fmt::format("its header has {} bytes, allowed are {}", length, kMostHeaderBytes)
          : fmt::format("its header has {} bytes, but {} follow", length, size - kLengthBytes));
}

/// The file or index that a path means.
fs::path find_source(FileSystem& file_system, const fs::path& source) {
  std::error_code error;
  if (!fs::is_directory(source, error)) return source;
  std::vector<std::string> indexes, files;
  const std::vector<std::string> names = file_system.list(source);
  for (const std::string& name : names) {
    if (name.starts_with('.')) continue;
    if (name.ends_with(kIndexSuffix)) indexes.push_back(name);
    if (name.ends_with(kFileSuffix)) files.push_back(name);
  }
  const std::vector<std::string>& found = indexes.empty() ? files : indexes;
  if (found.size() == 1) return source / found[0];
  if (found.size() > 1) {
    refuse_source(
        ErrorCode::invalid_argument, source,
        fmt::format("it holds {} {}, such as {:?} and {:?}; needed is the path of one",
                    found.size(), indexes.empty() ? "safetensors files and no index" : "indexes",
                    found[0], found[1]));
  }
  const std::string_view what = foreign_folder(names);
  if (what.empty()) {
    refuse_source(ErrorCode::not_found, source, "it holds no safetensors file and no index");
  }
  refuse_source(ErrorCode::unsupported, source,
                fmt::format("it seems to be {}; needed is safetensors", what));
}

class ModelBuilder {
 public:
  explicit ModelBuilder(SafetensorsModel& model) : model_(model) {}

  /// `index`: tensor -> file; null where there is only this file.
  void add_file(const fs::path& path, const WeightMap* index);

  /// Sorts what was added.
  void finish();

 private:
  struct Tensor {
    TensorInfo info;
    FilePlace place;
  };

  SafetensorsModel& model_;
  std::size_t num_files_ = 0;
  std::vector<Tensor> tensors_;
  std::map<std::string, std::string> metadata_;  // of the files so far
};

void ModelBuilder::add_file(const fs::path& path, const WeightMap* index) {
  const std::string file_name = path.filename().string();
  const std::size_t number = num_files_++;
  const std::shared_ptr<File> file = model_.files.add(path);
  const std::uint64_t length = header_bytes(*file, path);
  const std::uint64_t begin = kLengthBytes + length;
  const std::string text = read_text(*file, kLengthBytes, length);
  SafetensorsHeader header =
      with_path(path, [&] { return parse_header(text, model_.files.size(number) - begin); });
  for (SafetensorsEntry& tensor : header.tensors) {
    if (index) {
      const auto listed = index->find(tensor.name);
      if (listed == index->end() || listed->second != file_name) {
        refuse_source(
            ErrorCode::corrupt, path,
            fmt::format("tensor {}: the index has it {}", shown(tensor.name),
                        listed == index->end() ? "nowhere" : "in " + shown(listed->second)));
      }
    }
    TensorInfo info{.name = std::move(tensor.name), .dtype = tensor.dtype, .shape = tensor.shape};
    info.logical_bytes = static_cast<std::size_t>(tensor.end - tensor.begin);
    tensors_.push_back({std::move(info), {number, begin + tensor.begin}});
  }
  for (const auto& [key, value] : header.metadata) {
    const auto [at, is_new] = metadata_.emplace(key, value);
    if (is_new) {
      model_.metadata.emplace_back(key, value);
    } else if (at->second != value) {
      model_.metadata.emplace_back(fmt::format("{}: {}", file_name, key), value);
    }
  }
}

void ModelBuilder::finish() {
  std::sort(tensors_.begin(), tensors_.end(),
            [](const Tensor& a, const Tensor& b) { return a.info.name < b.info.name; });
  model_.tensors.reserve(tensors_.size());
  model_.places.reserve(tensors_.size());
  for (Tensor& tensor : tensors_) {
    model_.tensors.push_back(std::move(tensor.info));
    model_.places.push_back(tensor.place);
  }
}

WeightMap read_index(FileSystem& file_system, const fs::path& path) {
  WeightFiles files(std::shared_ptr<FileSystem>(std::shared_ptr<void>(), &file_system));
  const std::shared_ptr<File> file = files.add(path);
  if (files.size(0) > kMostHeaderBytes) {
    refuse_source(ErrorCode::corrupt, path,
                  fmt::format("it has {} bytes, allowed are {}", files.size(0), kMostHeaderBytes));
  }
  const std::string text = read_text(*file, 0, files.size(0));
  return with_path(path, [&] { return parse_index(text); });
}

/// Each tensor of a file was in the index: so one is missing where there are fewer.
void check_complete(const fs::path& path, const WeightMap& index,
                    std::span<const TensorInfo> tensors) {
  auto found = tensors.begin();
  for (const auto& [tensor, file] : index) {
    if (found == tensors.end() || found->name != tensor) {
      refuse_source(ErrorCode::corrupt, path,
                    fmt::format("tensor {}: it is not in {}", shown(tensor), shown(file)));
    }
    ++found;
  }
}

void add_files_of(const fs::path& path, const WeightMap& index, ModelBuilder& builder) {
  std::set<std::string_view> names;
  for (const auto& [tensor, file] : index) names.insert(file);
  for (const std::string_view name : names) {
    try {
      builder.add_file(path.parent_path() / name, &index);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::not_found) throw;
      refuse_source(ErrorCode::not_found, path, error.what());
    }
  }
}

}  // namespace

std::unique_ptr<SafetensorsModel> open_safetensors(const fs::path& source,
                                                   const std::shared_ptr<FileSystem>& file_system) {
  const fs::path path = find_source(*file_system, source);
  auto model = std::make_unique<SafetensorsModel>(file_system);
  ModelBuilder builder(*model);
  if (path.extension() == ".json") {
    const WeightMap index = read_index(*file_system, path);
    if (index.empty()) {
      refuse_source(ErrorCode::corrupt, path, "its weight_map is empty; needed is a tensor");
    }
    add_files_of(path, index, builder);
    builder.finish();
    check_complete(path, index, model->tensors);
  } else {
    builder.add_file(path, nullptr);
    builder.finish();
  }
  return model;
}

}  // namespace shardwise::detail
