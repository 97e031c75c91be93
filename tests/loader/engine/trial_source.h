#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "loader/pattern_source.h"
#include "shardwise/loader/host_loader.h"
#include "shardwise/shard/error.h"

namespace shardwise {

/// Computed records: "image" u8 [6, 4], "text" u16 [12], ragged, "label" i32. Some parts of some
/// records cannot be read. Counts the elements that it reads. Thread-safe.
class TrialSource final : public Source {
 public:
  using IsBad = std::function<bool(std::int64_t record, std::size_t field, const Box& box)>;

  explicit TrialSource(std::int64_t size, IsBad is_bad = {})
      : size_(size), is_bad_(std::move(is_bad)) {}

  std::int64_t size() const override { return size_; }
  std::span<const Field> fields() const override { return fields_; }
  std::uint64_t fingerprint() const override { return static_cast<std::uint64_t>(size_) + 1; }

  std::int64_t length(const Sample& sample, std::size_t field) const override {
    return field == 1 ? text_length(sample.record) : Source::length(sample, field);
  }

  void read(const Sample& sample, std::span<const FieldBox> boxes) const override {
    for (const FieldBox& box : boxes) {
      if (is_bad_ && is_bad_(sample.record, box.field, box.to.box)) {
        throw Error(ErrorCode::corrupt, "read: record is bad");
      }
      std::byte* out = box.to.data;
      const std::size_t bytes = size_bytes(fields_[box.field].dtype);
      for (const Index& at : indices_of(box.to.box)) {
        const std::uint64_t value = element(box.field, sample.record, at);
        std::memcpy(out, &value, bytes);
        out += bytes;
        ++elements_;
      }
    }
  }

  /// What an element is; 0 beyond a record of text.
  static std::uint64_t element(std::size_t field, std::int64_t record, const Index& at) {
    if (field == 1 && at[0] >= text_length(record)) return 0;
    std::size_t offset = 1;
    for (const std::int64_t index : at) offset = 16 * offset + static_cast<std::size_t>(index);
    return PatternSource::element(field, record, offset);
  }
  static std::int64_t text_length(std::int64_t record) { return record * 7 % 13; }

  std::int64_t elements() const { return elements_; }

 private:
  std::int64_t size_;
  IsBad is_bad_;
  std::vector<Field> fields_{
      {"image", DType::u8, {6, 4}}, {"text", DType::u16, {12}, true}, {"label", DType::i32, {}}};
  mutable std::atomic<std::int64_t> elements_{0};
};

/// A batch put together from its parts, which must cover every element and agree where they
/// overlap: fields, mask and weights, each the whole array. Halos are cut off.
struct WholeBatch {
  std::int64_t index, epoch, valid_rows;
  std::vector<Shape> shapes;
  std::vector<std::vector<std::byte>> arrays;

  bool operator==(const WholeBatch&) const = default;
};

/// An array that several hosts have parts of.
inline void join_array(const std::vector<const HostArray*>& hosts, const Shape& narrow,
                       WholeBatch& whole) {
  const std::size_t bytes = size_bytes(hosts[0]->dtype);
  const Box all = Box::whole(narrow);
  std::vector<std::byte> joined(num_bytes(narrow, bytes));
  std::vector<bool> known(joined.size() / bytes);
  for (const HostArray* host : hosts) {
    for (const HostPart& part : host->parts) {
      if (part.bytes != num_bytes(part.box.shape(), bytes)) throw std::logic_error("bytes");
      const Box memory = Box::whole(part.box.shape());
      for (const Index& at : indices_of(memory)) {
        const std::byte* const value = part.data.get() + offset_in(memory, at) * bytes;
        Index in_batch = at;
        for (std::size_t dim = 0; dim < at.size(); ++dim) {
          in_batch[dim] += part.batch.begin(dim) - part.batch_at[dim];
        }
        if (!holds(part.batch, in_batch)) {
          for (std::size_t i = 0; i < bytes; ++i) {
            if (value[i] != std::byte{}) throw std::logic_error("no zero around a record");
          }
          if (!holds(all, in_batch)) continue;
        }
        const std::size_t offset = offset_in(all, in_batch);
        if (known[offset] && std::memcmp(joined.data() + offset * bytes, value, bytes) != 0) {
          throw std::logic_error("parts differ at " + to_string(in_batch));
        }
        known[offset] = true;
        std::memcpy(joined.data() + offset * bytes, value, bytes);
      }
    }
  }
  if (std::ranges::find(known, false) != known.end()) throw std::logic_error("not covered");
  whole.shapes.push_back(narrow);
  whole.arrays.push_back(std::move(joined));
}

/// The shape of an array without its halos.
inline Shape narrow_shape(const HostArray& array, const FieldPlacement& placement) {
  Shape shape = array.shape;
  for (std::size_t i = 0; i < placement.halo.size(); ++i) {
    shape[i + 1] -=
        placement.sharding.tiles(i + 1) * (placement.halo[i].low + placement.halo[i].high);
  }
  return shape;
}

/// The same batch of several hosts.
inline WholeBatch join(const std::vector<HostBatch>& hosts,
                       const std::vector<FieldPlacement>& placements) {
  WholeBatch whole{hosts[0].index, hosts[0].epoch, hosts[0].valid_rows, {}, {}};
  for (std::size_t i = 0; i < placements.size() + 2; ++i) {
    std::vector<const HostArray*> arrays;
    for (const HostBatch& host : hosts) {
      if (host.index != whole.index || host.epoch != whole.epoch ||
          host.valid_rows != whole.valid_rows) {
        throw std::logic_error("hosts have different batches");
      }
      arrays.push_back(i < placements.size()    ? &host.fields[i]
                       : i == placements.size() ? &host.mask
                                                : &host.weights);
    }
    const Shape shape =
        i < placements.size() ? narrow_shape(*arrays[0], placements[i]) : arrays[0]->shape;
    join_array(arrays, shape, whole);
  }
  return whole;
}

}  // namespace shardwise
