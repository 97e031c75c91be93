#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "shardwise/checkpoint/detail/hdf5/address_driver.h"
#include "shardwise/checkpoint/detail/hdf5/hdf5_groups.h"
#include "shardwise/checkpoint/detail/hdf5/hdf5_objects.h"
#include "shardwise/convert/detail/model_source.h"
#include "shardwise/convert/detail/write/export_format.h"
#include "shardwise/shard/text.h"
#include "shardwise/storage/utf8.h"

namespace shardwise::detail {
namespace {

std::uint64_t aligned(std::uint64_t address) {
  constexpr std::uint64_t kAlignment = 64;
  return (address + kAlignment - 1) / kAlignment * kAlignment;
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// HDF5's superblock, contiguous elements, and the objects that describe them.
class Hdf5Frame final : public FileFrame {
 public:
  explicit Hdf5Frame(std::span<const TensorInfo> tensors) {
    std::uint64_t end = kFrontBytes;
    for (const TensorInfo& tensor : tensors) {
      const std::uint64_t begin = aligned(end);
      padding_.push_back(begin - end);
      begins_.push_back(begin);
      end = begin + num_bytes(tensor.shape, size_bytes(tensor.dtype));
    }
    tail_padding_ = aligned(end) - end;
    AddressDriver driver(kFrontBytes, aligned(end));
    const Hdf5Lock lock;
    driver.finish(driver.create_file());
    const Hdf5Types types;
    Hdf5Bytes out(driver.end());
    Hdf5Datasets datasets(out);
    std::vector<std::string> paths;
    std::vector<Hdf5Link> links;
    for (const TensorInfo& tensor : tensors) paths.push_back("/" + tensor.name);
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      const std::uint64_t bytes = num_bytes(tensors[t].shape, size_bytes(tensors[t].dtype));
      links.push_back(
          {paths[t], datasets.add_contiguous(types[tensors[t].dtype], tensors[t].shape,
                                             bytes == 0 ? kHdf5NoAddress : begins_[t], bytes)});
    }
    const std::uint64_t root = add_hdf5_groups(out, std::move(links));
    driver.append(out, root);
    front_ = text_of(driver.front());
    tail_ = text_of(driver.tail());
    bytes_ = driver.end();
  }

  std::uint64_t bytes() const override { return bytes_; }
  std::string begin() override { return front_; }
  std::string before(std::size_t tensor) override { return std::string(padding_[tensor], '\0'); }
  std::string end() override { return std::string(tail_padding_, '\0') + tail_; }

 private:
  std::vector<std::uint64_t> padding_, begins_;
  std::uint64_t tail_padding_ = 0, bytes_ = 0;
  std::string front_, tail_;
};

/// Why a name is no path of groups; empty if it is one.
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

  /// Of 8-bit floats HDF5 can describe one.
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
