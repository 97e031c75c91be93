#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "loader/pattern_source.h"
#include "shardwise/loader/source.h"
#include "testing/random_boxes.h"

namespace shardwise {

/// Records that are computed, as PatternSource's, of ragged fields too: their lengths are a
/// function of field and record, and elements past them are zero. Keeps the boxes that were asked
/// for. Thread-safe.
class RaggedSource final : public Source {
 public:
  RaggedSource(std::int64_t size, std::vector<Field> fields)
      : size_(size), fields_(std::move(fields)) {}

  std::int64_t size() const override { return size_; }
  std::span<const Field> fields() const override { return fields_; }

  std::int64_t length(const Sample& sample, std::size_t field) const override {
    const Field& of = fields_[field];
    if (!of.ragged) return Source::length(sample, field);
    return static_cast<std::int64_t>(PatternSource::element(field + 100, sample.record, 0) %
                                     (static_cast<std::uint64_t>(of.shape[0]) + 1));
  }

  void read(const Sample& sample, std::span<const FieldBox> boxes) const override {
    const std::lock_guard lock(mutex_);
    ++reads_;
    for (const FieldBox& box : boxes) {
      asked_.push_back({box.field, sample.record, box.to.box});
      const Field& field = fields_[box.field];
      const Box whole = Box::whole(field.shape);
      ASSERT_TRUE(whole.contains(box.to.box)) << to_string(box.to.box);
      const std::int64_t end = length(sample, box.field);
      std::byte* out = box.to.data;
      for_each_index(box.to.box, [&](const Index& at) {
        const bool inside = !field.ragged || at[0] < end;
        const std::uint64_t value = inside ? value_of(box.field, sample, offset_in(whole, at)) : 0;
        std::memcpy(out, &value, std::min(size_bytes(field.dtype), sizeof(value)));
        out += size_bytes(field.dtype);
      });
    }
  }

  struct Asked {
    std::size_t field;
    std::int64_t record;
    Box box;
  };
  /// Since the last call.
  std::vector<Asked> take_asked() const {
    const std::lock_guard lock(mutex_);
    return std::exchange(asked_, {});
  }
  std::int64_t reads() const {
    const std::lock_guard lock(mutex_);
    return reads_;
  }

 private:
  // Values differ by epoch, so that a test sees which epoch was asked for.
  static std::uint64_t value_of(std::size_t field, const Sample& sample, std::size_t offset) {
    return PatternSource::element(field, sample.record, offset) ^
           static_cast<std::uint64_t>(sample.epoch) * 0x0101010101010101;
  }

  std::int64_t size_;
  std::vector<Field> fields_;
  mutable std::mutex mutex_;
  mutable std::vector<Asked> asked_;
  mutable std::int64_t reads_ = 0;
};

/// A box of one field of a sample.
inline std::vector<std::byte> box_of(const Source& source, const Sample& sample, std::size_t field,
                                     const Box& box) {
  std::vector<std::byte> bytes(num_bytes(box.shape(), size_bytes(source.fields()[field].dtype)),
                               std::byte{0xEE});
  const FieldBox to{field, {bytes.data(), box}};
  source.read(sample, {&to, 1});
  return bytes;
}

inline std::vector<std::byte> whole_of(const Source& source, const Sample& sample,
                                       std::size_t field) {
  return box_of(source, sample, field, Box::whole(source.fields()[field].shape));
}

/// The same, as numbers. T is the field's type.
template <class T>
std::vector<T> values_of(const Source& source, const Sample& sample, std::size_t field) {
  const std::vector<std::byte> bytes = whole_of(source, sample, field);
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

/// Records of numbers in memory: one field, `values` one record after the other.
template <class T>
std::shared_ptr<const Source> numbers(Field field, const std::vector<T>& values) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(values));
  const std::int64_t elements = num_elements(field.shape);
  return memory_source(std::move(field), static_cast<std::int64_t>(values.size()) / elements,
                       {bytes.begin(), bytes.end()});
}

/// 0 .. size-1 as a field "x" i32 [].
inline std::shared_ptr<const Source> counted(std::int64_t size, std::int32_t first = 0) {
  std::vector<std::int32_t> values(static_cast<std::size_t>(size));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = first + static_cast<std::int32_t>(i);
  return numbers<std::int32_t>({"x", DType::i32, {}}, values);
}

/// Values of the records of an epoch of counted().
inline std::vector<std::int32_t> epoch_of(const Source& source, std::int64_t epoch,
                                          std::uint64_t seed = 0) {
  std::vector<std::int32_t> values;
  for (std::int64_t record = 0; record < source.size(); ++record) {
    values.push_back(values_of<std::int32_t>(source, {record, epoch, seed}, 0)[0]);
  }
  return values;
}

/// Any boxes of all fields of a sample, asked for by one call, are parts of the whole;
/// a ragged field is zero past its length.
inline void expect_boxes_of_whole(const Source& source, const Sample& sample, int boxes,
                                  RandomShardings& random) {
  std::vector<std::vector<std::byte>> wholes, data;
  const std::span<const Field> fields = source.fields();
  for (std::size_t field = 0; field < fields.size(); ++field) {
    wholes.push_back(whole_of(source, sample, field));
    if (!fields[field].ragged) continue;
    const std::int64_t length = source.length(sample, field);
    ASSERT_GE(length, 0);
    ASSERT_LE(length, fields[field].shape[0]);
    if (fields[field].shape[0] == 0) continue;
    const std::size_t row = wholes.back().size() / static_cast<std::size_t>(fields[field].shape[0]);
    EXPECT_TRUE(std::all_of(
        wholes.back().begin() + static_cast<std::ptrdiff_t>(row * static_cast<std::size_t>(length)),
        wholes.back().end(), [](std::byte b) { return b == std::byte{0}; }))
        << "field " << field << " past " << length;
  }
  std::vector<FieldBox> asked;
  data.reserve(static_cast<std::size_t>(boxes));
  for (int i = 0; i < boxes; ++i) {
    const std::size_t field =
        static_cast<std::size_t>(random.draw(0, static_cast<std::int64_t>(fields.size()) - 1));
    const Box box = random_box(Box::whole(fields[field].shape), random);
    data.emplace_back(num_bytes(box.shape(), size_bytes(fields[field].dtype)), std::byte{0xEE});
    asked.push_back({field, {data.back().data(), box}});
  }
  source.read(sample, asked);
  for (std::size_t i = 0; i < asked.size(); ++i) {
    const std::size_t field = asked[i].field;
    std::vector<std::byte> expected(data[i].size());
    copy_box(asked[i].to.box, size_bytes(fields[field].dtype),
             {wholes[field].data(), Box::whole(fields[field].shape)},
             {expected.data(), asked[i].to.box});
    ASSERT_EQ(data[i], expected) << "field " << field << " box " << to_string(asked[i].to.box);
  }
}

}  // namespace shardwise
