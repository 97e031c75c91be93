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

  /// Value of an element; 0 beyond a record of text.
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
/// overlap: fields, mask and weights, each the whole array.
struct WholeBatch {
  std::int64_t index, epoch, valid_rows;
  std::vector<Shape> shapes;
  std::vector<std::vector<std::byte>> arrays;

  bool operator==(const WholeBatch&) const = default;
};

/// An array that several hosts have parts of.
inline void join_array(const std::vector<const HostArray*>& hosts, WholeBatch& whole) {
  const std::size_t bytes = size_bytes(hosts[0]->dtype);
  const Box all = Box::whole(hosts[0]->shape);
  std::vector<std::byte> joined(num_bytes(hosts[0]->shape, bytes));
  std::vector<bool> known(joined.size() / bytes);
  for (const HostArray* host : hosts) {
    for (const HostPart& part : host->parts) {
      if (part.bytes != num_bytes(part.box.shape(), bytes)) throw std::logic_error("bytes");
      for (const Index& at : indices_of(part.box)) {
        const std::byte* const value = part.data.get() + offset_in(part.box, at) * bytes;
        const std::size_t offset = offset_in(all, at);
        if (known[offset] && std::memcmp(joined.data() + offset * bytes, value, bytes) != 0) {
          throw std::logic_error("parts differ at " + to_string(at));
        }
        known[offset] = true;
        std::memcpy(joined.data() + offset * bytes, value, bytes);
      }
    }
  }
  if (std::ranges::find(known, false) != known.end()) throw std::logic_error("not covered");
  whole.shapes.push_back(hosts[0]->shape);
  whole.arrays.push_back(std::move(joined));
}

/// The same batch of several hosts.
inline WholeBatch join(const std::vector<HostBatch>& hosts) {
  const std::size_t fields = hosts[0].fields.size();
  WholeBatch whole{hosts[0].index, hosts[0].epoch, hosts[0].valid_rows, {}, {}};
  for (std::size_t i = 0; i < fields + 2; ++i) {
    std::vector<const HostArray*> arrays;
    for (const HostBatch& host : hosts) {
      if (host.index != whole.index || host.epoch != whole.epoch ||
          host.valid_rows != whole.valid_rows) {
        throw std::logic_error("hosts have different batches");
      }
      arrays.push_back(i < fields ? &host.fields[i] : i == fields ? &host.mask : &host.weights);
    }
    join_array(arrays, whole);
  }
  return whole;
}

}  // namespace shardwise
