#include "shardwise/convert/detail/hdf5_model.h"

#include <fmt/format.h>

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "shardwise/shard/error.h"
#include "shardwise/storage/detail/hdf5_reader.h"
#include "shardwise/storage/utf8.h"

namespace shardwise::detail {
namespace {

namespace fs = std::filesystem;

/// Thread-safe.
class Hdf5Tensors final : public BoxReader {
 public:
  Hdf5Tensors(const fs::path& path, std::unique_ptr<File> whole)
      : path_(path), whole_(std::move(whole)), bytes_(whole_->size()), tree_(path) {
    for (const Hdf5Dataset& dataset : tree_.datasets()) {
      TensorInfo& tensor = tensors_.emplace_back(
          TensorInfo{.name = dataset.name, .dtype = dataset.dtype, .shape = dataset.shape});
      tensor.logical_bytes = dataset.bytes;
    }
  }

  const std::vector<std::string>& left_out() const { return tree_.left_out(); }

  std::span<const TensorInfo> tensors() const override { return tensors_; }

  void read(std::size_t tensor, const Box& box, std::span<std::byte> out) const override {
    if (box.empty()) return;
    const std::string what =
        fmt::format("tensor {} of {}", shown(tensors_[tensor].name), path_.string());
    tree_.read(tensor, box, out.data(), what);
    // The library reads bytes that are missing at a file's end as zeros.
    if (const std::uint64_t now = whole_->size(); now != bytes_) {
      throw Error(ErrorCode::corrupt,
                  fmt::format("{}: it has {} bytes now, it had {}", what, now, bytes_));
    }
  }

 private:
  const fs::path path_;
  const std::unique_ptr<File> whole_;
  const std::uint64_t bytes_;  // of the file
  const Hdf5Reader tree_;
  std::vector<TensorInfo> tensors_;
};

}  // namespace

ModelSource open_hdf5_model(const fs::path& path, FileSystem& file_system) {
  auto tensors = std::make_unique<Hdf5Tensors>(path, open_linked(file_system, path));
  std::vector<std::string> left_out = tensors->left_out();
  return {kHdf5, std::move(tensors), {}, std::move(left_out)};
}

}  // namespace shardwise::detail
