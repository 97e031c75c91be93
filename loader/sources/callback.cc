#include <fmt/format.h>

#include <cstring>
#include <exception>
#include <new>
#include <utility>

#include "shardwise/loader/detail/read_frame.h"
#include "shardwise/loader/source.h"
#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

std::size_t aligned_bytes(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

class CallbackSource final : public Source {
 public:
  CallbackSource(std::vector<Field> fields, std::int64_t size, FillRecord fill,
                 RecordLength length);

  std::int64_t size() const override { return size_; }
  std::span<const Field> fields() const override { return fields_; }
  void read(const Sample& sample, std::span<const FieldBox> boxes) const override;
  std::int64_t length(const Sample& sample, std::size_t field) const override;

 private:
  template <class Body>
  auto guarded(const Sample& sample, Body&& body) const;

  std::vector<Field> fields_;
  std::int64_t size_;
  FillRecord fill_;
  RecordLength length_;
  std::vector<Box> whole_;          // per field
  std::vector<std::size_t> bytes_;  // per field
};

CallbackSource::CallbackSource(std::vector<Field> fields, std::int64_t size, FillRecord fill,
                               RecordLength length)
    : fields_(std::move(fields)), size_(size), fill_(std::move(fill)), length_(std::move(length)) {
  whole_.reserve(fields_.size());
  bytes_.reserve(fields_.size());
  for (const Field& field : fields_) {
    whole_.push_back(Box::whole(field.shape));
    bytes_.push_back(num_bytes(field.shape, size_bytes(field.dtype)));
  }
}

template <class Body>
auto CallbackSource::guarded(const Sample& sample, Body&& body) const {
  try {
    return body();
  } catch (const Error&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    throw Error(ErrorCode::io, fmt::format("callback: record {}: {}", sample.record, error.what()));
  } catch (...) {
    throw Error(
        ErrorCode::io,
        fmt::format(
            "callback: record {}: the function threw an object that is not a std::exception",
            sample.record));
  }
}

// A field is written to the first target that holds all of it; else to scratch memory.
void CallbackSource::read(const Sample& sample, std::span<const FieldBox> boxes) const {
  detail::ReadFrame frame;
  std::vector<std::byte*>& record = frame.lists().places;
  record.assign(fields_.size(), nullptr);
  for (const FieldBox& box : boxes) {
    if (record[box.field] == nullptr && box.to.box == whole_[box.field]) {
      record[box.field] = box.to.data;
    }
  }
  std::size_t scratch_bytes = 0;
  for (std::size_t i = 0; i < fields_.size(); ++i) {
    if (record[i] == nullptr) scratch_bytes += aligned_bytes(bytes_[i]);
  }
  std::byte* next = frame.lists().memory.take(scratch_bytes);
  for (std::size_t i = 0; i < fields_.size(); ++i) {
    if (record[i] == nullptr) {
      record[i] = next;
      next += aligned_bytes(bytes_[i]);
    }
    if (bytes_[i] > 0) std::memset(record[i], 0, bytes_[i]);
  }
  guarded(sample, [&] { fill_(sample, record); });
  for (const FieldBox& box : boxes) {
    const std::byte* from = record[box.field];
    if (box.to.data == from) continue;
    copy_box(box.to.box, size_bytes(fields_[box.field].dtype), {from, whole_[box.field]}, box.to);
  }
}

std::int64_t CallbackSource::length(const Sample& sample, std::size_t field) const {
  if (!fields_[field].ragged) return Source::length(sample, field);
  const std::int64_t length = guarded(sample, [&] { return length_(sample, field); });
  const std::int64_t most = fields_[field].shape[0];
  if (length >= 0 && length <= most) return length;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("callback: record {}, field \"{}\" has length {}, needed is 0 to {}",
                          sample.record, fields_[field].name, length, most));
}

}  // namespace

std::shared_ptr<const Source> callback_source(std::vector<Field> fields, std::int64_t size,
                                              FillRecord fill, RecordLength length) {
  const auto refuse = [](const std::string& found) {
    throw Error(ErrorCode::invalid_argument, "source of a callback: " + found);
  };
  if (!fill) refuse("got no function, needed is one");
  if (size < 0) refuse(fmt::format("size is {}, needed is 0 or more", size));
  if (fields.empty()) refuse("got no field, needed is at least one");
  for (std::size_t i = 0; i < fields.size(); ++i) {
    if (fields[i].ragged && (fields[i].shape.empty() || !length)) {
      refuse(fmt::format("field \"{}\" is ragged, needed is a dim and a function for its length",
                         fields[i].name));
    }
    for (std::size_t j = 0; j < i; ++j) {
      if (fields[i].name == fields[j].name) {
        refuse(fmt::format("field \"{}\" comes twice, needed are distinct names", fields[i].name));
      }
    }
  }
  return std::make_shared<CallbackSource>(std::move(fields), size, std::move(fill),
                                          std::move(length));
}

}  // namespace shardwise
