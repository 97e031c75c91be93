#include "shardwise/convert/detail/write/export_format.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "shardwise/convert/detail/model_source.h"
#include "shardwise/convert/detail/safetensors/safetensors_dtypes.h"
#include "shardwise/convert/detail/safetensors/safetensors_header.h"
#include "shardwise/convert/detail/safetensors/safetensors_index.h"

namespace shardwise::detail {
namespace {

/// A header, then the data.
class SafetensorsFrame final : public FileFrame {
 public:
  SafetensorsFrame(std::span<const TensorInfo> tensors, const StringMap& metadata) {
    std::vector<SafetensorsEntry> entries;
    for (const TensorInfo& tensor : tensors) {
      const std::uint64_t end = data_bytes_ + num_bytes(tensor.shape, size_bytes(tensor.dtype));
      entries.push_back({tensor.name, tensor.dtype, tensor.shape, data_bytes_, end});
      data_bytes_ = end;
    }
    header_ = header_text(entries, metadata);
  }

  std::uint64_t bytes() const override { return header_.size() + data_bytes_; }
  std::string begin() override { return header_; }

 private:
  std::string header_;
  std::uint64_t data_bytes_ = 0;
};

class SafetensorsExport final : public ExportFormat {
 public:
  std::string_view name() const override { return kSafetensors; }
  std::string_view suffix() const override { return kFileSuffix; }
  bool has_dtype(DType dtype) const override { return safetensors_dtype(dtype).has_value(); }

  std::string problem_of(std::span<const TensorInfo> tensors) const override {
    if (std::ranges::none_of(tensors,
                             [](const TensorInfo& t) { return t.name == kMetadataName; })) {
      return {};
    }
    return "a tensor is called __metadata__, which safetensors keeps for itself";
  }

  void order(std::span<const TensorInfo> all, std::vector<std::size_t>& tensors) const override {
    // The safetensors library's order; by name within one dtype.
    const auto rank = [&](std::size_t t) { return safetensors_dtype(all[t].dtype).value().rank; };
    std::ranges::stable_sort(tensors,
                             [&](std::size_t a, std::size_t b) { return rank(a) > rank(b); });
  }

  std::unique_ptr<FileFrame> frame(std::span<const TensorInfo> tensors,
                                   const StringMap& metadata) const override {
    return std::make_unique<SafetensorsFrame>(tensors, metadata);
  }
};

}  // namespace

const ExportFormat& safetensors_export() {
  static const SafetensorsExport format;
  return format;
}

std::span<const ExportFormat* const> export_formats() {
  static const std::array all{&safetensors_export(), &npz_export(), &hdf5_export()};
  return all;
}

bool is_exported_name(std::string_view name) {
  return std::ranges::any_of(export_formats(), [name](const ExportFormat* format) {
    // A folder of data may hold npz and HDF5.
    if (format != &safetensors_export() && !name.starts_with("model")) return false;
    return name.ends_with(format->suffix()) ||
           name.ends_with(std::string(format->suffix()) + std::string(kIndexEnding));
  });
}

}  // namespace shardwise::detail
