#include "shardwise/convert/detail/joined_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "shardwise/convert/detail/safetensors/safetensors_header.h"
#include "shardwise/convert/detail/safetensors/safetensors_index.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/utf8.h"

namespace shardwise::detail {
namespace {

namespace fs = std::filesystem;

/// Thread-safe once it is built.
class JoinedTensors final : public BoxReader {
 public:
  void add(std::unique_ptr<BoxReader> file) {
    for (std::size_t t = 0; t < file->tensors().size(); ++t) {
      places_.emplace(file->tensors()[t].name, Place{file.get(), t});
    }
    files_.push_back(std::move(file));
  }

  /// Sorts the added tensors.
  void finish() {
    for (const auto& [name, place] : places_) {
      tensors_.push_back(place.file->tensors()[place.tensor]);
      by_number_.push_back(place);
    }
  }

  std::span<const TensorInfo> tensors() const override { return tensors_; }

  void read(std::size_t tensor, const Box& box, std::span<std::byte> out) const override {
    by_number_[tensor].file->read(by_number_[tensor].tensor, box, out);
  }

 private:
  struct Place {
    const BoxReader* file;
    std::size_t tensor;
  };

  std::vector<std::unique_ptr<BoxReader>> files_;
  std::map<std::string, Place> places_;
  std::vector<TensorInfo> tensors_;
  std::vector<Place> by_number_;
};

WeightMap index_of(const fs::path& path, FileSystem& file_system) {
  const std::unique_ptr<File> file = open_linked(file_system, path);
  const auto refuse = [&path](const std::string& what) {
    throw Error(ErrorCode::corrupt, fmt::format("read {}: {}", path.string(), what));
  };
  const std::uint64_t bytes = file->size();
  if (bytes > kMostHeaderBytes) {
    refuse(fmt::format("it has {} bytes, allowed are {}", bytes, kMostHeaderBytes));
  }
  WeightMap index;
  try {
    index = parse_index(text_at(*file, 0, bytes));
  } catch (const Error& error) {
    refuse(error.what());
  }
  if (index.empty()) refuse("its weight_map is empty; needed is a tensor");
  return index;
}

}  // namespace

ModelSource open_joined(const fs::path& index, FileSystem& file_system,
                        const std::function<ModelSource(const fs::path&)>& open) {
  std::map<std::string, std::vector<std::string>> by_file;  // each sorted
  for (const auto& [tensor, file] : index_of(index, file_system)) by_file[file].push_back(tensor);
  ModelSource all;
  auto joined = std::make_unique<JoinedTensors>();
  for (const auto& [name, expected] : by_file) {
    if (name.ends_with(kIndexEnding)) {  // not an index again: it may be this one
      throw Error(ErrorCode::corrupt,
                  fmt::format("read {}: {} is no file of tensors", index.string(), shown(name)));
    }
    ModelSource file = open(index.parent_path() / name);
    std::vector<std::string> found;
    for (const TensorInfo& tensor : file.tensors->tensors()) found.push_back(tensor.name);
    const auto [is, needed] = std::ranges::mismatch(found, expected);
    if (is != found.end() || needed != expected.end()) {
      throw Error(ErrorCode::corrupt,
                  fmt::format("read {}: it says that {} has tensor {}; found {}", index.string(),
                              name, needed == expected.end() ? "no more" : shown(*needed),
                              is == found.end() ? "none" : shown(*is)));
    }
    all.format = file.format;
    std::ranges::move(file.left_out, std::back_inserter(all.left_out));
    joined->add(std::move(file.tensors));
  }
  joined->finish();
  all.tensors = std::move(joined);
  return all;
}

}  // namespace shardwise::detail
