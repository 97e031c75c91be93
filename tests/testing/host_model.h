#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "shardwise/reshape/edits.h"
#include "shardwise/shard/host/mutex.h"
#include "testing/errors.h"
#include "testing/host_tensor.h"

namespace shardwise {

/// Tensors in memory.
class HostModel final : public BoxReader {
 public:
  explicit HostModel(std::vector<HostTensor> tensors) : model_(std::move(tensors)) {
    for (const HostTensor& tensor : model_) {
      infos_.push_back({.name = tensor.name,
                        .dtype = tensor.spec.dtype,
                        .shape = tensor.spec.shape,
                        .sharding = tensor.spec.sharding,
                        .logical_bytes = tensor.data->size()});
    }
  }

  std::span<const TensorInfo> tensors() const override { return infos_; }
  void read(std::size_t tensor, const Box& box, std::span<std::byte> out) const override {
    const std::vector<std::byte> part = model_[tensor].part(box);
    if (part.size() != out.size()) throw std::logic_error("read: out is of another size");
    std::copy(part.begin(), part.end(), out.begin());
    const MutexLock lock(mutex_);  // devices read at once
    largest_read = std::max(largest_read, out.size());
    read_bytes += out.size();
    reads.emplace_back(out);
  }
  const std::byte* contiguous(std::size_t tensor, const Box& box) const override {
    return find_contiguous(box, size_bytes(infos_[tensor].dtype),
                           {model_[tensor].data->data(), Box::whole(infos_[tensor].shape)});
  }

  /// The most bytes that were read at once into memory outside of `out`.
  std::size_t largest_scratch(std::span<const std::byte> out) const {
    std::size_t most = 0;
    for (const std::span<const std::byte> read : reads) {
      const bool is_inside =
          out.data() <= read.data() && read.data() + read.size() <= out.data() + out.size();
      if (!is_inside) most = std::max(most, read.size());
    }
    return most;
  }

  /// To be looked at while nobody reads.
  mutable std::size_t largest_read = 0, read_bytes = 0;
  mutable std::vector<std::span<const std::byte>> reads;

 private:
  mutable Mutex mutex_;
  std::vector<HostTensor> model_;
  std::vector<TensorInfo> infos_;
};

inline std::shared_ptr<HostModel> host_model(
    const std::vector<std::pair<const char*, DType>>& tensors) {
  std::vector<HostTensor> made;
  for (const auto& [name, dtype] : tensors) {
    made.push_back(host_tensor(name, dtype, {4, 6}, "a=2", "a,-"));
  }
  return std::make_shared<HostModel>(std::move(made));
}

inline std::shared_ptr<HostModel> usual_model() {
  return host_model({{"model.h.0.w", DType::f32},
                     {"model.h.1.w", DType::f32},
                     {"model.ln", DType::bf16},
                     {"opt.step", DType::i64},
                     {"opt.w", DType::f64}});
}

inline std::vector<std::string> tensor_names(const BoxReader& reader) {
  std::vector<std::string> names;
  for (const TensorInfo& info : reader.tensors()) names.push_back(info.name);
  return names;
}

/// The error for edits that do not fit.
inline std::string edit_fault(const TensorEdits& edits,
                              std::shared_ptr<const BoxReader> source = usual_model()) {
  return message_of(ErrorCode::invalid_argument,
                    [&] { EditedTensors(source, edits, "reshard x"); });
}

}  // namespace shardwise
