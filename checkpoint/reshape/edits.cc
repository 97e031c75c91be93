#include "shardwise/reshape/edits.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "shardwise/checkpoint/detail/lanes/scratch_pool.h"
#include "shardwise/reshape/detail/edits/apply_edits.h"
#include "shardwise/shard/box_copy.h"

namespace shardwise {
namespace {

/// Elements of a row-major box, and of a place for them in a larger one, in the order of the place.
struct TransposedCopy {
  Shape extents;
  Dims from_strides, to_strides;  ///< in elements

  template <std::size_t element_bytes>
  void run(const std::byte* from, std::byte* to) const {
    // memcpy of a constant size is one move.
    const std::size_t last = extents.size() - 1;
    Box outer;
    for (std::size_t d = 0; d < last; ++d) outer.push_back(0, extents[d]);
    const std::int64_t from_step = from_strides[last] * std::int64_t{element_bytes};
    const std::int64_t to_step = to_strides[last] * std::int64_t{element_bytes};
    for_each_index(outer, [&](const Index& at) {
      const std::byte* read = from;
      std::byte* written = to;
      for (std::size_t d = 0; d < last; ++d) {
        read += at[d] * from_strides[d] * std::int64_t{element_bytes};
        written += at[d] * to_strides[d] * std::int64_t{element_bytes};
      }
      for (std::int64_t i = 0; i < extents[last]; ++i) {
        std::memcpy(written, read, element_bytes);
        read += from_step;
        written += to_step;
      }
    });
  }

  void run(std::size_t element_bytes, const std::byte* from, std::byte* to) const {
    switch (element_bytes) {
      case 1:
        return run<1>(from, to);
      case 2:
        return run<2>(from, to);
      case 4:
        return run<4>(from, to);
      case 8:
        return run<8>(from, to);
      default:
        return run<16>(from, to);
    }
  }
};

/// Copies a box of a tensor, whose elements are as a source has them, into its place.
void copy_transposed(const Box& box, const std::vector<std::size_t>& order,
                     std::size_t element_bytes, const Box& stored, const std::byte* elements,
                     const BoxView& to) {
  const Dims stored_strides = row_major_strides(stored.shape());
  TransposedCopy copy{box.shape(), box.shape(), row_major_strides(to.box.shape())};
  std::int64_t offset = 0;
  for (std::size_t d = 0; d < box.rank(); ++d) {
    copy.from_strides[d] = order[d] == reshape_detail::kNewDim ? 0 : stored_strides[order[d]];
    offset += (box.begin(d) - to.box.begin(d)) * copy.to_strides[d];
  }
  copy.run(element_bytes, elements, to.data + offset * std::int64_t(element_bytes));
}

/// Makes the elements of a box zero.
void fill_with_zeros(const Box& box, std::size_t element_bytes, const BoxView& view) {
  for_each_run(walk_runs(box, view.box, view.box), [&](std::int64_t offset, std::int64_t,
                                                       std::int64_t count) {
    std::memset(view.data + as_size(offset) * element_bytes, 0, as_size(count) * element_bytes);
  });
}

/// The place of a box in row-major memory, if it is one run there; else null.
std::byte* find_run(const Box& box, std::size_t element_bytes, const BoxView& view) {
  const std::byte* const found = find_contiguous(box, element_bytes, {view.data, view.box});
  return found == nullptr ? nullptr : view.data + (found - view.data);
}

}  // namespace

struct EditedTensors::Impl {
  /// Elements as in the source, and cast ones if they cannot be written to their place in one run.
  struct Elements {
    std::size_t held_bytes() const { return stored.capacity() + cast.capacity(); }

    void reserve(std::size_t stored_bytes, std::size_t cast_bytes) {
      for (auto [bytes, needed] : {std::pair(&stored, stored_bytes), {&cast, cast_bytes}}) {
        if (bytes->capacity() < needed) *bytes = {};  // no growth
        bytes->resize(needed);
      }
    }

    std::vector<std::byte> stored, cast;
  };

  std::vector<reshape_detail::EditedTensor> edited;
  std::size_t most_bytes;
  detail::ScratchPool<Elements> pool = {};
};

EditedTensors::EditedTensors(std::shared_ptr<const BoxReader> source, const TensorEdits& edits,
                             std::string_view operation, std::size_t scratch_bytes)
    : source_(std::move(source)),
      impl_(new Impl{reshape_detail::apply_edits(source_->tensors(), edits, operation),
                     std::max<std::size_t>(scratch_bytes, 16)}) {
  tensors_.reserve(impl_->edited.size());
  for (reshape_detail::EditedTensor& tensor : impl_->edited)
    tensors_.push_back(std::move(tensor.info));
}

EditedTensors::~EditedTensors() = default;

void EditedTensors::read(std::size_t tensor, const Box& box, std::span<std::byte> out) const {
  const reshape_detail::EditedTensor& edited = impl_->edited[tensor];
  for (const reshape_detail::EditedPart& part : edited.parts) {
    read_part(tensor, part, edited.common(part, box), {out.data(), box});
  }
}

void EditedTensors::read_part(std::size_t tensor, const reshape_detail::EditedPart& part,
                              const Box& wanted, const BoxView& out) const {
  if (wanted.empty()) return;
  const reshape_detail::EditedTensor& edited = impl_->edited[tensor];
  const DType from = source_->tensors()[part.source].dtype, to = tensors_[tensor].dtype;
  const std::size_t from_bytes = size_bytes(from), to_bytes = size_bytes(to);
  const StoredPart there = stored_part(part.source, edited.in_source(part, wanted));
  const Box& stored = there.box;
  if (there.is_padded) fill_with_zeros(wanted, to_bytes, out);
  if (stored.empty()) return;
  const Box common = there.is_padded ? edited.from_source(part, stored) : wanted;
  if (from == to && part.keeps_order()) {
    if (std::byte* const place = find_run(common, to_bytes, out); place != nullptr) {
      const std::size_t bytes = as_size(common.num_elements()) * to_bytes;
      return source_->read(part.source, stored, {place, bytes});
    }
  }
  const bool is_cast = from != to, moves = !part.keeps_order() || edited.parts.size() > 1;
  const std::size_t held_bytes = from_bytes + (is_cast && moves ? to_bytes : 0);
  for_each_slab(stored, held_bytes, impl_->most_bytes, [&](const Box& slab) {
    const std::size_t count = as_size(slab.num_elements());
    const Box at = edited.from_source(part, slab);
    std::byte* const place = part.keeps_order() ? find_run(at, to_bytes, out) : nullptr;
    const detail::ScratchPool<Impl::Elements>::Loan scratch(impl_->pool);
    scratch->reserve(count * from_bytes, is_cast && place == nullptr ? count * to_bytes : 0);
    source_->read(part.source, slab, scratch->stored);
    const std::byte* elements = scratch->stored.data();
    if (is_cast) {
      std::byte* const made = place != nullptr ? place : scratch->cast.data();
      convert(from, elements, to, made, count);
      elements = made;
    }
    if (elements == place) return;
    if (part.keeps_order()) {
      copy_box(at, to_bytes, {elements, at}, out);
    } else {
      copy_transposed(at, part.order, to_bytes, slab, elements, out);
    }
  });
}

EditedTensors::StoredPart EditedTensors::stored_part(std::size_t source, const Box& box) const {
  const Box whole = Box::whole(source_->tensors()[source].shape);
  if (whole.contains(box)) return {box, false};
  return {intersect(box, whole), true};
}

std::vector<EditedTensors::SourceBox> EditedTensors::source_boxes(std::size_t tensor,
                                                                  const Box& box) const {
  const reshape_detail::EditedTensor& edited = impl_->edited[tensor];
  std::vector<SourceBox> boxes;
  boxes.reserve(edited.parts.size());
  for (const reshape_detail::EditedPart& part : edited.parts) {
    const Box wanted = edited.in_source(part, edited.common(part, box));
    boxes.push_back({part.source, stored_part(part.source, wanted).box, part.order});
  }
  return boxes;
}

std::optional<EditedTensors::SourceBox> EditedTensors::same_in_source(std::size_t tensor,
                                                                      const Box& box) const {
  const reshape_detail::EditedTensor& edited = impl_->edited[tensor];
  for (const reshape_detail::EditedPart& part : edited.parts) {
    const Box common = edited.common(part, box);
    if (common != box) continue;
    const bool is_same =
        part.keeps_order() && source_->tensors()[part.source].dtype == tensors_[tensor].dtype;
    if (!is_same) return std::nullopt;
    auto [stored, is_padded] = stored_part(part.source, edited.in_source(part, common));
    if (is_padded) return std::nullopt;
    return SourceBox{part.source, stored};
  }
  return std::nullopt;
}

const std::byte* EditedTensors::contiguous(std::size_t tensor, const Box& box) const {
  const std::optional<SourceBox> same = same_in_source(tensor, box);
  return same ? source_->contiguous(same->tensor, same->box) : nullptr;
}

}  // namespace shardwise
