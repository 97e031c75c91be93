#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/checkpoint/box_reader.h"
#include "shardwise/shard/box_copy.h"
#include "shardwise/shard/dtype.h"
#include "shardwise/shard/error.h"

namespace shardwise {

/// Selects tensors of a source and says how they are changed. Patterns match whole names of the
/// source: "*" stands for any characters, "?" for one.
///
///   TensorEdits edits{.select = {"model.*"}, .exclude = {"*.bias"}};
///   edits.renames.push_back(TensorEdits::Rename::parse("model.*=*"));
///   edits.casts.push_back(TensorEdits::Cast::parse("*=bf16"));
struct TensorEdits {
  /// Each "*" of the new name stands for what that "*" of the pattern stood for, as few characters
  /// as do; so does each "?". It has as many of them as the pattern, or none.
  struct Rename {
    std::string pattern, name;

    /// "pattern=name". Throws invalid_argument.
    static Rename parse(std::string_view text);
  };

  /// Floats become any floats, rounded to nearest, ties to even; beyond the range infinite; NaN
  /// stays NaN. Integers and bool become dtypes that hold all their values exactly. A pattern with
  /// "*" or "?" and a floating dtype takes floats alone and leaves other tensors as they are.
  struct Cast {
    std::string pattern;
    DType dtype = DType::f32;

    /// "pattern=dtype", or "dtype" for the pattern "*". Throws invalid_argument.
    static Cast parse(std::string_view text);
  };

  /// Dim d of the new tensor is dim `order[d]` of the source's. A pattern with "*" or "?" leaves
  /// tensors of another number of dims as they are.
  struct Transpose {
    std::string pattern;
    std::vector<std::size_t> order;

    /// "pattern=1,0". Throws invalid_argument.
    static Transpose parse(std::string_view text);
  };

  /// A tensor grows or shrinks: `pad` puts zeros after its elements, `slice` takes the beginning.
  /// A pattern with "*" or "?" leaves tensors of another number of dims as they are.
  struct Resize {
    enum class How { pad, slice };
    static constexpr std::int64_t kSame = -1;  ///< an extent that stays

    std::string pattern;
    How how = How::pad;
    std::vector<std::int64_t> extents = {};  ///< of each dim as it is transposed, or kSame

    /// "pattern=pad:50304,-" or "pattern=slice:50257,-"; "-" is kSame. Throws invalid_argument.
    static Resize parse(std::string_view text);
  };

  /// One tensor becomes several, which are side by side in it along `dim`. Their names are as a
  /// Rename's. A name with "#", which is then the only one, is of each index of the dim, without
  /// that dim: "#" stands for the index.
  struct Split {
    std::string pattern;
    std::vector<std::string> names;
    std::int64_t dim = 0;                    ///< as it is transposed and resized; -1: the last one
    std::vector<std::int64_t> extents = {};  ///< of each along dim; empty: all the same
    bool takes_dim = false;                  ///< each name is of one index, without that dim

    /// "pattern=name,name@dim", "pattern=name,name@dim:extent,extent", or "pattern=name,name@+dim"
    /// for takes_dim. Throws invalid_argument.
    static Split parse(std::string_view text);
  };

  /// Several tensors, one for each pattern, become one: side by side along `dim`, in the order of
  /// the patterns. Tensors belong together if wildcards stand for the same in their names. A
  /// pattern with "#", which is then the only one, is of tensors with the numbers 0, 1, 2, ..
  /// there: they are the indices of a new dim.
  struct Join {
    std::vector<std::string> patterns;
    std::string name;       ///< as a Rename's
    std::int64_t dim = 0;   ///< as they are transposed and resized; -1: the last one
    bool adds_dim = false;  ///< dim is a new one, and each pattern's tensor is one index of it

    /// "pattern,pattern=name@dim", or "pattern,pattern=name@+dim" for adds_dim. Throws
    /// invalid_argument.
    static Join parse(std::string_view text);
  };

  std::vector<std::string> select = {};    ///< tensors that one of these matches; empty: all
  std::vector<std::string> exclude = {};   ///< without those that one of these matches
  std::vector<Rename> renames = {};        ///< the first rule that matches counts
  std::vector<Cast> casts = {};            ///< the first rule that takes it counts
  std::vector<Transpose> transposes = {};  ///< the first rule that takes it counts
  std::vector<Resize> resizes = {};        ///< the first rule that takes it counts
  std::vector<Split> splits = {};          ///< the first rule that matches counts
  std::vector<Join> joins = {};            ///< of tensors that no split or earlier join takes

  bool empty() const { return keeps_names() && keeps_elements(); }

  /// True if all tensors are there, under the names that they had.
  bool keeps_names() const {
    return select.empty() && exclude.empty() && renames.empty() && splits.empty() && joins.empty();
  }

  /// True if elements have their values and their order, and no others are among them.
  bool keeps_elements() const {
    return casts.empty() && transposes.empty() && resizes.empty() && joins.empty();
  }
};

namespace reshape_detail {
struct EditedPart;
}

/// The tensors of another reader, edited. A box is read from it when it is asked for, and no more
/// than it needs; a cast, transpose, resize or join holds `scratch_bytes` of each read that is
/// going on. A box of a transposed tensor is read in the source's order, part by part.
///
/// Thread-safe.
///
///   const EditedTensors edited(std::make_shared<CheckpointReader>("root/step-00000001"),
///                              {.renames = {{"w", "v"}}, .casts = {{"w", DType::bf16}}});
///   edited.tensors()[0].name;   // "v"
///   edited.tensors()[0].dtype;  // bf16
///
///   const EditedTensors parts(std::make_shared<CheckpointReader>("root/step-00000001"),
///                             {.transposes = {{"*", {1, 0}}}, .splits = {{"w", {"a", "b"}, 0}}});
///   parts.tensors()[1].name;    // "b"
///   parts.tensors()[1].shape;   // [1, 2]
class EditedTensors final : public BoxReader {
 public:
  /// Throws one invalid_argument for all that does not fit: rules that match nothing, with the
  /// nearest names, tensors that would have the same name, casts that lose something, dims that are
  /// not there, tensors that do not grow or shrink as asked, extents that do not add up, joins of
  /// tensors that are missing or of other shapes or dtypes, and edits that leave no tensor.
  /// `operation` begins the message.
  EditedTensors(std::shared_ptr<const BoxReader> source, const TensorEdits& edits,
                std::string_view operation = "edit tensors",
                std::size_t scratch_bytes = std::size_t{4} << 20);
  ~EditedTensors() override;

  /// Sorted by name. Their counts of pieces, chunks and stored bytes are those of the source, and 0
  /// for a resized, split or joined tensor. They are cut as in the source, if all their sources are
  /// cut alike and that fits their shape.
  std::span<const TensorInfo> tensors() const override { return tensors_; }

  void read(std::size_t tensor, const Box& box, std::span<std::byte> out) const override;
  const std::byte* contiguous(std::size_t tensor, const Box& box) const override;
  bool may_change() const override { return source_->may_change(); }

  /// A box of a tensor of the source.
  struct SourceBox {
    std::size_t tensor;
    Box box;
    std::vector<std::size_t> order = {};  ///< its dims as the new tensor has them; empty: all

    bool operator==(const SourceBox&) const = default;
  };

  /// The boxes that are read of the source for a box: one of each tensor that this one is made of,
  /// some maybe empty. The zeros of a pad are in no box.
  std::vector<SourceBox> source_boxes(std::size_t tensor, const Box& box) const;

  /// The box of the source that has the same elements in the same order, if there is one.
  std::optional<SourceBox> same_in_source(std::size_t tensor, const Box& box) const;

 private:
  struct Impl;

  /// The elements of one part, into their place in a box.
  void read_part(std::size_t tensor, const reshape_detail::EditedPart& part, const Box& wanted,
                 const BoxView& out) const;

  /// The part of a box that the source has: a box of one of its tensors, which may be padded.
  struct StoredPart {
    Box box;
    bool is_padded;
  };
  StoredPart stored_part(std::size_t source, const Box& box) const;

  std::shared_ptr<const BoxReader> source_;
  std::vector<TensorInfo> tensors_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shardwise
