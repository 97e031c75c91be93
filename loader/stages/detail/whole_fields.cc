#include "shardwise/loader/stages/detail/whole_fields.h"

#include <utility>

namespace shardwise::detail {
namespace {

constexpr std::size_t kPlaceAlignment = 64;

}  // namespace

WholeFields::WholeFields(std::span<const Field> fields, std::vector<std::size_t> which)
    : which_(std::move(which)) {
  offsets_.reserve(which_.size());
  bytes_.reserve(which_.size());
  boxes_.reserve(which_.size());
  for (const std::size_t field : which_) {
    const Field& of = fields[field];
    offsets_.push_back(total_bytes_);
    bytes_.push_back(num_bytes(of.shape, size_bytes(of.dtype)));
    boxes_.push_back(Box::whole(of.shape));
    total_bytes_ += (bytes_.back() + kPlaceAlignment - 1) / kPlaceAlignment * kPlaceAlignment;
  }
}

std::unique_ptr<std::byte[]> WholeFields::allocate() const {
  return std::make_unique_for_overwrite<std::byte[]>(total_bytes_);
}

void WholeFields::add_reads(std::byte* memory, std::vector<FieldBox>& reads) const {
  reads.reserve(reads.size() + which_.size());
  for (std::size_t i = 0; i < which_.size(); ++i) {
    if (bytes_[i] != 0) reads.push_back({which_[i], {memory + offsets_[i], boxes_[i]}});
  }
}

}  // namespace shardwise::detail
