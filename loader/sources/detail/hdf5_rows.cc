#include "shardwise/loader/sources/detail/hdf5_rows.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <list>
#include <optional>
#include <utility>

#include "shardwise/loader/detail/files/byte_order.h"
#include "shardwise/loader/detail/row_stretch.h"

namespace shardwise::detail {
namespace {

// Limits for a dataset that is too large to be kept.
constexpr std::size_t kRecentBytes = std::size_t{64} << 20, kMostRecent = 64;

// A box of a record's field as a box of the dataset.
Box dataset_box(std::int64_t record, const Box& box) {
  Box whole;
  whole.push_back(record, record + 1);
  for (std::size_t dim = 0; dim < box.rank(); ++dim) whole.push_back(box.begin(dim), box.end(dim));
  return whole;
}

class ChunkRows final : public RowReader {
 public:
  ChunkRows(std::shared_ptr<const HeldFile> file, const Hdf5Reader& dataset)
      : file_(std::move(file)),
        dtype_(dataset.dataset().dtype),
        swapped_(dataset.dataset().swapped),
        chunk_(dataset.layout().chunk),
        offsets_(dataset.layout().chunk_offsets) {
    for (std::size_t dim = 0; dim < chunk_.size(); ++dim) {
      grid_.push_back((dataset.dataset().shape[dim] - 1) / chunk_[dim] + 1);
    }
    if (!has_whole_rows(dataset)) return;
    for (std::size_t dim = 1; dim < chunk_.size(); ++dim) row_shape_.push_back(chunk_[dim]);
    row_ = Box::whole(row_shape_);
    row_bytes_ = num_bytes(row_shape_, size_bytes(dtype_));
  }

  void read(std::int64_t record, const BoxView& to) const override {
    if (!row_) {
      read_parts(record, to);
    } else {
      const std::size_t offset = offset_of(record);
      const std::size_t element_bytes = size_bytes(dtype_);
      if (const auto stretch = one_stretch(row_shape_, to.box)) {
        file_->read(record, offset + stretch->begin * element_bytes,
                    {to.data, stretch->count * element_bytes});
      } else {
        file_->read_box(record, offset, *row_, to.box, element_bytes, to);
      }
    }
    if (swapped_) swap_bytes(dtype_, {to.data, num_bytes(to.box.shape(), size_bytes(dtype_))});
  }

  void will_read(std::int64_t record) const override {
    if (row_) file_->will_read(offset_of(record), row_bytes_);
  }

 private:
  // The offset of a row that is in a single chunk.
  std::size_t offset_of(std::int64_t record) const {
    return offsets_[as_size(record / chunk_[0])] + as_size(record % chunk_[0]) * row_bytes_;
  }

  // Reads from each chunk that has a part of the row.
  void read_parts(std::int64_t record, const BoxView& to) const {
    const BoxView target{to.data, dataset_box(record, to.box)};
    const std::size_t element_bytes = size_bytes(dtype_);
    if (target.box.empty()) return;
    Box chunks;  // those that the box touches
    for (std::size_t dim = 0; dim < chunk_.size(); ++dim) {
      chunks.push_back(target.box.begin(dim) / chunk_[dim],
                       (target.box.end(dim) - 1) / chunk_[dim] + 1);
    }
    for_each_index(chunks, [&](const Index& at) {
      Box stored;
      std::int64_t number = 0;
      for (std::size_t dim = 0; dim < chunk_.size(); ++dim) {
        stored.push_back(at[dim] * chunk_[dim], (at[dim] + 1) * chunk_[dim]);
        number = number * grid_[dim] + at[dim];
      }
      file_->read_box(record, offsets_[as_size(number)], stored, intersect(stored, target.box),
                      element_bytes, target);
    });
  }

  std::shared_ptr<const HeldFile> file_;
  DType dtype_;
  bool swapped_;
  Shape chunk_, grid_;
  std::vector<std::uint64_t> offsets_;
  Shape row_shape_;
  std::optional<Box> row_;  // if each row is in a single chunk
  std::size_t row_bytes_ = 0;
};

/// Blocks of rows; the last ones used are kept. Thread-safe; each block is read by one thread,
/// while others that want it wait.
class RecentBlocks {
 public:
  using Read = std::function<void(std::int64_t block, std::byte* out)>;

  RecentBlocks(std::size_t block_bytes, std::size_t most, Read read)
      : block_bytes_(block_bytes), most_(most), read_(std::move(read)) {}

  /// Valid as long as the result.
  std::shared_ptr<const std::byte[]> find(std::int64_t number) {
    const std::shared_ptr<Block> block = take(number);
    const MutexLock lock(block->mutex);
    if (!block->data) {
      auto data = std::make_unique_for_overwrite<std::byte[]>(block_bytes_);
      read_(number, data.get());
      block->data = std::move(data);
    }
    return block->data;
  }

 private:
  struct Block {
    explicit Block(std::int64_t its_number) : number(its_number) {}
    const std::int64_t number;
    Mutex mutex;
    std::shared_ptr<const std::byte[]> data SHARDWISE_GUARDED_BY(mutex);
  };

  std::shared_ptr<Block> take(std::int64_t number) {
    const MutexLock lock(mutex_);
    const auto found = std::find_if(blocks_.begin(), blocks_.end(),
                                    [&](const auto& block) { return block->number == number; });
    if (found != blocks_.end()) {
      blocks_.splice(blocks_.begin(), blocks_, found);
    } else {
      blocks_.push_front(std::make_shared<Block>(number));
      if (blocks_.size() > most_) blocks_.pop_back();
    }
    return blocks_.front();
  }

  std::size_t block_bytes_, most_;
  Read read_;
  Mutex mutex_;
  std::list<std::shared_ptr<Block>> blocks_ SHARDWISE_GUARDED_BY(mutex_);  // last used first
};

/// Thread-safe.
class LibraryRows final : public RowReader {
 public:
  LibraryRows(Hdf5Reader dataset, HoldBudget& budget);

  void read(std::int64_t record, const BoxView& to) const override;

 private:
  void read_rows(std::int64_t begin, std::int64_t end, std::byte* out) const;

  Hdf5Reader dataset_;
  Box row_;
  std::size_t element_bytes_, row_bytes_ = 0;
  std::int64_t rows_per_block_ = 1;
  std::unique_ptr<HeldBytes> all_;        // if all rows fit
  std::unique_ptr<RecentBlocks> recent_;  // else, if blocks are small enough
};

LibraryRows::LibraryRows(Hdf5Reader dataset, HoldBudget& budget)
    : dataset_(std::move(dataset)), element_bytes_(size_bytes(dataset_.dataset().dtype)) {
  const Shape& shape = dataset_.dataset().shape;
  Shape row;
  for (std::size_t dim = 1; dim < shape.size(); ++dim) row.push_back(shape[dim]);
  row_ = Box::whole(row);
  row_bytes_ = num_bytes(row, element_bytes_);
  const Shape& chunk = dataset_.layout().chunk;
  rows_per_block_ = std::min(chunk.empty() ? 1 : chunk[0], std::max<std::int64_t>(shape[0], 1));
  std::size_t block_bytes = 0, bytes = 0;
  if (row_bytes_ == 0 || __builtin_mul_overflow(row_bytes_, as_size(shape[0]), &bytes) ||
      __builtin_mul_overflow(row_bytes_, as_size(rows_per_block_), &block_bytes)) {
    return;
  }
  if (bytes <= budget.left_bytes) {
    // Whole chunks, and about the size of a file's block, since each call of the library is costly.
    const std::size_t blocks = (HeldBytes::kBlockBytes + block_bytes - 1) / block_bytes;
    const std::size_t step = block_bytes * blocks;
    all_ = std::make_unique<HeldBytes>(
        bytes, step, budget, [this](std::size_t offset, std::span<std::byte> out) {
          const std::size_t begin = offset / row_bytes_, rows = out.size() / row_bytes_;
          read_rows(static_cast<std::int64_t>(begin), static_cast<std::int64_t>(begin + rows),
                    out.data());
          return out.size();
        });
    if (all_->holds()) return;
    all_.reset();
  }
  if (block_bytes > kRecentBytes) return;
  recent_ = std::make_unique<RecentBlocks>(
      block_bytes, std::clamp<std::size_t>(kRecentBytes / block_bytes, 1, kMostRecent),
      [this](std::int64_t block, std::byte* out) {
        const std::int64_t begin = block * rows_per_block_;
        read_rows(begin, std::min(begin + rows_per_block_, dataset_.dataset().shape[0]), out);
      });
}

void LibraryRows::read_rows(std::int64_t begin, std::int64_t end, std::byte* out) const {
  Box box = Box::whole(dataset_.dataset().shape);
  box.set(0, begin, end);
  dataset_.read(box, out);
}

void LibraryRows::read(std::int64_t record, const BoxView& to) const {
  const std::byte* from = nullptr;
  std::shared_ptr<const std::byte[]> block;
  if (all_) {
    from = all_->find(as_size(record) * row_bytes_, row_bytes_);
  } else if (recent_) {
    block = recent_->find(record / rows_per_block_);
    from = block.get() + as_size(record % rows_per_block_) * row_bytes_;
  }
  if (from == nullptr) {
    dataset_.read(dataset_box(record, to.box), to.data);
  } else if (to.box == row_) {
    std::memcpy(to.data, from, row_bytes_);
  } else {
    copy_box(to.box, element_bytes_, {from, row_}, to);
  }
}

}  // namespace

bool has_whole_rows(const Hdf5Reader& dataset) {
  for (std::size_t dim = 1; dim < dataset.dataset().shape.size(); ++dim) {
    if (dataset.layout().chunk[dim] != dataset.dataset().shape[dim]) return false;
  }
  return true;
}

std::unique_ptr<const RowReader> chunk_rows(std::shared_ptr<const HeldFile> file,
                                            const Hdf5Reader& dataset) {
  return std::make_unique<const ChunkRows>(std::move(file), dataset);
}

std::unique_ptr<const RowReader> library_rows(Hdf5Reader dataset, HoldBudget& budget) {
  return std::make_unique<const LibraryRows>(std::move(dataset), budget);
}

}  // namespace shardwise::detail
