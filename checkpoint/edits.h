#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/checkpoint/box_reader.h"
#include "shardwise/shard/dtype.h"
#include "shardwise/shard/error.h"

namespace shardwise {

/// Which tensors of a source are wanted, and what is changed about them. Patterns match whole names
/// of the source: "*" stands for any characters, "?" for one.
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
  /// stays NaN. Integers and bool become what holds each of their values exactly. A pattern with
  /// "*" or "?" and a floating dtype takes floats alone and leaves other tensors as they are.
  struct Cast {
    std::string pattern;
    DType dtype = DType::f32;

    /// "pattern=dtype". Throws invalid_argument.
    static Cast parse(std::string_view text);
  };

  std::vector<std::string> select = {};   ///< what one of these matches; empty: all
  std::vector<std::string> exclude = {};  ///< without what one of these matches
  std::vector<Rename> renames = {};       ///< the first rule that matches counts
  std::vector<Cast> casts = {};           ///< the first rule that takes it counts

  bool empty() const {
    return select.empty() && exclude.empty() && renames.empty() && casts.empty();
  }

  /// Whether tensors have the names that they had, and all are there.
  bool keeps_names() const { return select.empty() && exclude.empty() && renames.empty(); }
};

/// The tensors of another reader, edited. Boxes are read from it when they are asked for; a cast
/// holds `scratch_bytes` of each read that is going on.
///
/// Thread-safe.
///
///   const EditedTensors edited(std::make_shared<CheckpointReader>("root/step-00000001"),
///                              {.renames = {{"w", "v"}}, .casts = {{"w", DType::bf16}}});
///   edited.tensors()[0].name;   // "v"
///   edited.tensors()[0].dtype;  // bf16
class EditedTensors final : public BoxReader {
 public:
  /// Throws one invalid_argument for all that does not fit: rules that match nothing, with the
  /// nearest names, tensors that would have the same name, casts that lose something, and edits
  /// that leave no tensor. `operation` begins the message.
  EditedTensors(std::shared_ptr<const BoxReader> source, const TensorEdits& edits,
                std::string_view operation = "edit tensors",
                std::size_t scratch_bytes = std::size_t{4} << 20);
  ~EditedTensors() override;

  /// Sorted by name. What is known of their pieces, chunks and stored bytes is what is stored.
  std::span<const TensorInfo> tensors() const override { return tensors_; }

  void read(std::size_t tensor, const Box& box, std::span<std::byte> out) const override;
  const std::byte* contiguous(std::size_t tensor, const Box& box) const override;
  bool may_change() const override { return source_->may_change(); }

  /// The source's number of a tensor.
  std::size_t source_number(std::size_t tensor) const { return numbers_[tensor]; }

 private:
  struct Scratch;

  std::shared_ptr<const BoxReader> source_;
  std::vector<TensorInfo> tensors_;
  std::vector<std::size_t> numbers_;
  std::unique_ptr<Scratch> scratch_;
};

}  // namespace shardwise
