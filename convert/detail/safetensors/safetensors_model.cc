#include "shardwise/convert/detail/safetensors/safetensors_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "shardwise/convert/detail/box_runs.h"
#include "shardwise/convert/detail/safetensors/safetensors_header.h"
#include "shardwise/convert/detail/safetensors/safetensors_index.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/detail/open_files.h"
#include "shardwise/storage/known_format.h"
#include "shardwise/storage/utf8.h"

namespace shardwise::detail {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse_source(ErrorCode code, const fs::path& path, const std::string& what) {
  throw Error(code, fmt::format("read {}: {}", path.string(), what));
}

/// Adds the path to errors of the body.
template <class Body>
auto with_path(const fs::path& path, Body&& body) {
  try {
    return body();
  } catch (const Error& error) {
    throw Error(error, fmt::format("read {}: {}", path.string(), error.what()));
  }
}

/// The length of the header, as the file states it; checked against the file's size.
std::uint64_t header_bytes(File& file, const fs::path& path) {
  constexpr std::uint64_t kMagicBytes = 32;
  const std::uint64_t size = file.size();
  const std::string first = text_at(file, 0, std::min(size, kMagicBytes));
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < std::min(first.size(), kLengthBytes); ++i) {
    length |= std::uint64_t{static_cast<unsigned char>(first[i])} << (8 * i);
  }
  const bool has_room = size >= kLengthBytes && length <= size - kLengthBytes;
  if (has_room && length <= kMostHeaderBytes) return length;
  if (const KnownFormat known = known_format_of_file(first, {});
      !known.name.empty() && known.name != kSafetensors) {
    refuse_source(ErrorCode::unsupported, path,
                  fmt::format("it seems to be {}, needed is safetensors, HDF5 or npz", known.what));
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

/// Names the command that reads a format which ModelReader does not read.
std::string_view way_out(const KnownFormat& known) {
  if (known.name == "shardwise") return ": \"shardwise reshard\" writes it again";
  if (known.name == "dcp") return ": \"shardwise import\" and import_dcp read it";
  if (known.name == "orbax") return ": \"shardwise import\" and import_orbax read it";
  return "";
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
  const KnownFormat known = known_format(source, file_system);
  if (known.name.empty()) {
    refuse_source(ErrorCode::not_found, source,
                  "it holds no safetensors file and no index, needed is one, or a file of "
                  "safetensors, HDF5 or npz");
  }
  refuse_source(ErrorCode::unsupported, source,
                fmt::format("it seems to be {}; needed is safetensors, HDF5 or npz{}",
                            to_string(known), way_out(known)));
}

/// Where a tensor's bytes begin.
struct FilePlace {
  std::size_t file;  ///< its number in the model
  std::uint64_t offset;
};

/// The headers of a model's files, merged. Thread-safe once it is built.
class SafetensorsTensors final : public BoxReader {
 public:
  SafetensorsTensors(std::vector<fs::path> of, std::shared_ptr<FileSystem> from)
      : file_system(std::move(from)),
        paths(std::move(of)),
        bytes(paths.size()),
        files(paths.size(), [this](std::size_t file) { return open(file); }) {}

  std::span<const TensorInfo> tensors() const override { return infos; }

  void read(std::size_t tensor, const Box& box, std::span<std::byte> out) const override {
    const TensorInfo& info = infos[tensor];
    const FilePlace place = places[tensor];
    try {
      const std::shared_ptr<File> file = files.at(place.file);
      read_box(*file, place.offset, info.shape, size_bytes(info.dtype), box, out);
    } catch (const Error& error) {
      throw Error(error, fmt::format("tensor {} of {}: {}", shown(info.name),
                                     paths[place.file].string(), error.what()));
    }
  }

  const std::shared_ptr<FileSystem> file_system;
  const std::vector<fs::path> paths;                ///< of the files
  std::vector<std::optional<std::uint64_t>> bytes;  ///< of each file, once its header was read
  mutable OpenFiles files;
  std::vector<TensorInfo> infos;  ///< sorted by name
  std::vector<FilePlace> places;  ///< of each tensor

 private:
  /// A file that is opened again must have its first size. Throws corrupt otherwise.
  std::unique_ptr<File> open(std::size_t file) const {
    std::unique_ptr<File> opened = open_linked(*file_system, paths[file]);
    if (!bytes[file]) return opened;
    if (const std::uint64_t now = opened->size(); now != *bytes[file]) {
      refuse_source(ErrorCode::corrupt, paths[file],
                    fmt::format("it has {} bytes now, it had {}", now, *bytes[file]));
    }
    return opened;
  }
};

class ModelBuilder {
 public:
  ModelBuilder(SafetensorsTensors& model, StringMap& metadata)
      : model_(model), all_metadata_(metadata) {}

  /// `index`: tensor -> file; null if there is only this file.
  void add_file(std::size_t number, const WeightMap* index);

  /// Sorts the added tensors.
  void finish();

 private:
  struct Tensor {
    TensorInfo info;
    FilePlace place;
  };

  SafetensorsTensors& model_;
  StringMap& all_metadata_;
  std::vector<Tensor> tensors_;
  std::map<std::string, std::string> metadata_;  // of the files so far
};

void ModelBuilder::add_file(std::size_t number, const WeightMap* index) {
  const fs::path& path = model_.paths[number];
  const std::string file_name = path.filename().string();
  const std::shared_ptr<File> file = model_.files.at(number);
  const std::uint64_t bytes = file->size();
  model_.bytes[number] = bytes;
  const std::uint64_t length = header_bytes(*file, path);
  const std::uint64_t begin = kLengthBytes + length;
  const std::string text = text_at(*file, kLengthBytes, length);
  SafetensorsHeader header = with_path(path, [&] { return parse_header(text, bytes - begin); });
  for (SafetensorsEntry& tensor : header.tensors) {
    if (index) {
      const auto listed = index->find(tensor.name);
      if (listed == index->end()) {
        refuse_source(ErrorCode::corrupt, path,
                      fmt::format("tensor {}: the index has it nowhere", shown(tensor.name)));
      }
      if (listed->second != file_name) continue;  // the index decides, as in transformers
    }
    TensorInfo info{.name = std::move(tensor.name), .dtype = tensor.dtype, .shape = tensor.shape};
    info.foreign_dtype = std::move(tensor.foreign_dtype);
    info.logical_bytes = static_cast<std::size_t>(tensor.end - tensor.begin);
    tensors_.push_back({std::move(info), {number, begin + tensor.begin}});
  }
  for (const auto& [key, value] : header.metadata) {
    const auto [at, is_new] = metadata_.emplace(key, value);
    if (is_new) {
      all_metadata_.emplace_back(key, value);
    } else if (at->second != value) {
      all_metadata_.emplace_back(fmt::format("{}: {}", file_name, key), value);
    }
  }
}

void ModelBuilder::finish() {
  std::sort(tensors_.begin(), tensors_.end(),
            [](const Tensor& a, const Tensor& b) { return a.info.name < b.info.name; });
  model_.infos.reserve(tensors_.size());
  model_.places.reserve(tensors_.size());
  for (Tensor& tensor : tensors_) {
    model_.infos.push_back(std::move(tensor.info));
    model_.places.push_back(tensor.place);
  }
}

WeightMap read_index(FileSystem& file_system, const fs::path& path) {
  const std::unique_ptr<File> file = open_linked(file_system, path);
  const std::uint64_t bytes = file->size();
  if (bytes > kMostHeaderBytes) {
    refuse_source(ErrorCode::corrupt, path,
                  fmt::format("it has {} bytes, allowed are {}", bytes, kMostHeaderBytes));
  }
  const std::string text = text_at(*file, 0, bytes);
  return with_path(path, [&] { return parse_index(text); });
}

/// Throws if a tensor of the index is missing: each tensor was in the index, with its file, so a
/// smaller number means that one is.
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

std::vector<fs::path> files_of(const fs::path& path, const WeightMap& index) {
  std::set<std::string_view> names;
  for (const auto& [tensor, file] : index) names.insert(file);
  std::vector<fs::path> paths;
  paths.reserve(names.size());
  for (const std::string_view name : names) paths.push_back(path.parent_path() / name);
  return paths;
}

void add_files_of(const fs::path& path, const WeightMap& index, std::size_t files,
                  ModelBuilder& builder) {
  for (std::size_t file = 0; file < files; ++file) {
    try {
      builder.add_file(file, &index);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::not_found) throw;
      refuse_source(ErrorCode::not_found, path, error.what());
    }
  }
}

}  // namespace

ModelSource open_safetensors(const fs::path& source,
                             const std::shared_ptr<FileSystem>& file_system) {
  const fs::path path = find_source(*file_system, source);
  const bool has_index = path.extension() == ".json";
  WeightMap index;
  if (has_index) {
    index = read_index(*file_system, path);
    if (index.empty()) {
      refuse_source(ErrorCode::corrupt, path, "its weight_map is empty; needed is a tensor");
    }
  }
  auto model = std::make_unique<SafetensorsTensors>(
      has_index ? files_of(path, index) : std::vector{path}, file_system);
  StringMap metadata;
  ModelBuilder builder(*model, metadata);
  if (has_index) {
    add_files_of(path, index, model->paths.size(), builder);
  } else {
    builder.add_file(0, nullptr);
  }
  builder.finish();
  if (has_index) check_complete(path, index, model->infos);
  return {kSafetensors, std::move(model), std::move(metadata)};
}

}  // namespace shardwise::detail
