#include "shardwise/loader/detail/files/file_rows.h"

#include <utility>

#include "shardwise/loader/detail/files/byte_order.h"
#include "shardwise/loader/detail/row_stretch.h"
#include "shardwise/loader/detail/source_tag.h"

namespace shardwise::detail {
namespace {

class RowsSource final : public Source {
 public:
  RowsSource(std::int64_t size, std::vector<Field> fields,
             std::vector<std::unique_ptr<const RowReader>> readers, std::string description)
      : size_(size),
        fields_(std::move(fields)),
        readers_(std::move(readers)),
        description_(std::move(description)) {}

  std::int64_t size() const override { return size_; }
  std::span<const Field> fields() const override { return fields_; }
  void read(const Sample& sample, std::span<const FieldBox> boxes) const override {
    for (const FieldBox& box : boxes) readers_[box.field]->read(sample.record, box.to);
  }
  std::string describe(std::int64_t) const override { return description_; }
  void will_read(const Sample& sample) const override {
    for (const auto& reader : readers_) reader->will_read(sample.record);
  }

 private:
  std::int64_t size_;
  std::vector<Field> fields_;
  std::vector<std::unique_ptr<const RowReader>> readers_;
  std::string description_;
};

}  // namespace

FileRows::FileRows(std::shared_ptr<const HeldFile> file, const Field& field,
                   const RowLayout& layout)
    : file_(std::move(file)),
      layout_(layout),
      dtype_(field.dtype),
      shape_(field.shape),
      row_(Box::whole(field.shape)),
      element_bytes_(size_bytes(field.dtype)),
      row_bytes_(num_bytes(field.shape, element_bytes_)) {}

void FileRows::read(std::int64_t record, const BoxView& to) const {
  const std::size_t offset = offset_of(record);
  if (const auto stretch = one_stretch(shape_, to.box)) {
    const std::span<std::byte> out(to.data, stretch->count * element_bytes_);
    file_->read(record, offset + stretch->begin * element_bytes_, out);
    if (layout_.swapped) swap_bytes(dtype_, out);
    return;
  }
  file_->read_box(record, offset, row_, to.box, element_bytes_, to);
  if (layout_.swapped) swap_bytes(dtype_, {to.data, num_bytes(to.box.shape(), element_bytes_)});
}

void FileRows::will_read(std::int64_t record) const {
  file_->will_read(offset_of(record), row_bytes_);
}

std::shared_ptr<const Source> rows_source(std::int64_t size, std::vector<Field> fields,
                                          std::vector<std::unique_ptr<const RowReader>> readers,
                                          std::string description) {
  return std::make_shared<RowsSource>(size, std::move(fields), std::move(readers),
                                      std::move(description));
}

std::shared_ptr<const Source> file_rows_source(std::shared_ptr<const InputFile> file, Field field,
                                               std::int64_t size, const RowLayout& layout,
                                               std::size_t hold_bytes, std::string description) {
  HoldBudget budget{hold_bytes};
  const std::uint64_t tag = file->tag();
  const std::size_t end = file->size_bytes();
  auto held = std::make_shared<const HeldFile>(std::move(file), layout.begin_bytes, end, budget);
  std::vector<std::unique_ptr<const RowReader>> readers;
  readers.push_back(std::make_unique<const FileRows>(std::move(held), field, layout));
  std::vector<Field> fields;
  fields.push_back(std::move(field));
  return with_tag(rows_source(size, std::move(fields), std::move(readers), std::move(description)),
                  tag);
}

}  // namespace shardwise::detail
