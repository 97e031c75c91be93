#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "shardwise/loader/source.h"

namespace shardwise::detail {

/// The layout of memory for whole values of fields, one after the other, each at a multiple of 64
/// bytes.
class WholeFields {
 public:
  /// Allocates nothing yet.
  WholeFields(std::span<const Field> fields, std::vector<std::size_t> which);

  std::span<const std::size_t> which() const { return which_; }

  /// Size of the memory for one record, a multiple of 64.
  std::size_t total_bytes() const { return total_bytes_; }

  /// Allocates memory for one record.
  std::unique_ptr<std::byte[]> allocate() const;

  /// The i-th field's place in `memory`.
  std::span<std::byte> place(std::byte* memory, std::size_t i) const {
    return {memory + offsets_[i], bytes_[i]};
  }
  const Box& box(std::size_t i) const { return boxes_[i]; }

  /// Adds a read of each field.
  void add_reads(std::byte* memory, std::vector<FieldBox>& reads) const;

 private:
  std::vector<std::size_t> which_, offsets_, bytes_;
  std::vector<Box> boxes_;
  std::size_t total_bytes_ = 0;
};

}  // namespace shardwise::detail
