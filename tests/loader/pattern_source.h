#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "shardwise/loader/source.h"
#include "testing/random_shardings.h"

namespace shardwise {

/// Records that are computed: every element's bytes tell field, record and place within it. Counts
/// reads, and calls a hook before each, which may throw or wait. Thread-safe.
class PatternSource final : public Source {
 public:
  using Hook = std::function<void(std::size_t field, std::int64_t record)>;

  PatternSource(std::int64_t size, std::vector<Field> fields, Hook hook = {})
      : size_(size), fields_(std::move(fields)), hook_(std::move(hook)) {}

  std::int64_t size() const override { return size_; }
  std::span<const Field> fields() const override { return fields_; }

  void read(const Sample& sample, std::span<const FieldBox> boxes) const override {
    for (const FieldBox& box : boxes) read_one(box.field, sample.record, box.to);
  }

  static std::uint64_t element(std::size_t field, std::int64_t record, std::size_t offset) {
    std::uint64_t value = static_cast<std::uint64_t>(record + 1) * 0x9e3779b97f4a7c15;
    value = (value ^ (value >> 31) ^ (field << 50) ^ offset) * 0xbf58476d1ce4e5b9;
    return value ^ (value >> 29);
  }

  std::int64_t reads() const { return reads_; }
  std::int64_t elements() const { return elements_; }

 private:
  void read_one(std::size_t field, std::int64_t record, const BoxView& to) const {
    ++reads_;
    if (hook_) hook_(field, record);
    const Box whole = Box::whole(fields_[field].shape);
    const std::size_t bytes = size_bytes(fields_[field].dtype);
    std::byte* out = to.data;
    for (const Index& at : indices_of(to.box)) {
      const std::uint64_t value = element(field, record, offset_in(whole, at));
      std::memcpy(out, &value, bytes);
      out += bytes;
      ++elements_;
    }
  }

  std::int64_t size_;
  std::vector<Field> fields_;
  Hook hook_;
  mutable std::atomic<std::int64_t> reads_{0}, elements_{0};
};

/// Closed until it is opened, for everybody and for good. Thread-safe.
class Gate {
 public:
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void pass() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

}  // namespace shardwise
