#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "shardwise/checkpoint/detail/hdf5/plain_file.h"
#include "shardwise/convert/detail/model_source.h"
#include "shardwise/convert/detail/write/export_format.h"
#include "shardwise/shard/text.h"
#include "shardwise/storage/utf8.h"

namespace shardwise::detail {
namespace {

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// HDF5's superblock, contiguous elements, and the objects that describe them.
class Hdf5Frame final : public FileFrame {
 public:
  explicit Hdf5Frame(std::span<const TensorInfo> tensors) {
    std::vector<PlainDataset> datasets;
    datasets.reserve(tensors.size());
    for (const TensorInfo& tensor : tensors) {
      datasets.push_back({"/" + tensor.name, tensor.dtype, tensor.shape});
    }
    const PlainFile file = plain_file(datasets);
    front_ = text_of(file.front);
    tail_ = text_of(file.tail);
    std::uint64_t end = file.front.size();
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      padding_.push_back(file.begins[t] - end);
      end = file.begins[t] + num_bytes(tensors[t].shape, size_bytes(tensors[t].dtype));
    }
    tail_padding_ = file.data_end - end;
    bytes_ = file.data_end + file.tail.size();
  }

  std::uint64_t bytes() const override { return bytes_; }
  std::string begin() override { return front_; }
  std::string before(std::size_t tensor) override { return std::string(padding_[tensor], '\0'); }
  std::string end() override { return std::string(tail_padding_, '\0') + tail_; }

 private:
  std::vector<std::uint64_t> padding_;
  std::uint64_t tail_padding_ = 0, bytes_ = 0;
  std::string front_, tail_;
};

/// The reason why a name is no path of groups; empty if it is one.
std::string_view problem_of_name(const std::string& name) {
  constexpr std::size_t kMostComponentBytes = 3072;
  if (name.find('\0') != std::string::npos) return "a zero byte";
  for (const std::string_view part : split(name, '/')) {
    if (part.empty()) return "an empty part";
    if (part == "." || part == "..") return "a part of dots";
    if (part.size() > kMostComponentBytes) return "a part of more than 3,072 bytes";
  }
  return {};
}

class Hdf5Export final : public ExportFormat {
 public:
  std::string_view name() const override { return kHdf5; }
  std::string_view suffix() const override { return ".h5"; }

  /// HDF5 can describe only one of the 8-bit floats.
  bool has_dtype(DType dtype) const override {
    return is_computed(dtype) || dtype == DType::c64 || dtype == DType::c128 ||
           dtype == DType::f8_e5m2;
  }

  std::string problem_of(std::span<const TensorInfo> tensors) const override {
    std::set<std::string_view> names;
    for (const TensorInfo& tensor : tensors) names.insert(tensor.name);
    for (const TensorInfo& tensor : tensors) {
      const std::string& name = tensor.name;
      if (const std::string_view problem = problem_of_name(name); !problem.empty()) {
        return fmt::format("tensor {}: its name has {}, which groups of HDF5 have not", shown(name),
                           problem);
      }
      for (std::size_t slash = name.find('/'); slash != std::string::npos;
           slash = name.find('/', slash + 1)) {
        if (const auto group = std::string_view(name).substr(0, slash); names.contains(group)) {
          return fmt::format("tensor {} would be a group with tensor {} in it", shown(group),
                             shown(name));
        }
      }
    }
    return {};
  }

  std::unique_ptr<FileFrame> frame(std::span<const TensorInfo> tensors,
                                   const StringMap&) const override {
    return std::make_unique<Hdf5Frame>(tensors);
  }
};

}  // namespace

const ExportFormat& hdf5_export() {
  static const Hdf5Export format;
  return format;
}

}  // namespace shardwise::detail
