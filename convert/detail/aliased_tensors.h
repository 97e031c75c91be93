#pragma once

#include <string_view>

#include "shardwise/checkpoint/box_reader.h"
#include "shardwise/convert/detail/string_map.h"

namespace shardwise::detail {

/// The second names of tied tensors, each with the name under which its elements are stored, in
/// SaveOptions::objects_json as Python writes it; empty for any other text.
StringMap parse_aliases(std::string_view objects_json);

/// A source's tensors, listed under their own and their second names. An alias is skipped if its
/// tensor is not in the source, or if its second name is. As thread-safe as the source, which must
/// outlive it.
class AliasedTensors final : public BoxReader {
 public:
  AliasedTensors(const BoxReader& source, const StringMap& aliases);

  std::span<const TensorInfo> tensors() const override { return tensors_; }
  void read(std::size_t tensor, const Box& box, std::span<std::byte> out) const override {
    source_.read(numbers_[tensor], box, out);
  }

 private:
  const BoxReader& source_;
  std::vector<TensorInfo> tensors_;   // sorted by name
  std::vector<std::size_t> numbers_;  // per tensor, its number in the source
};

}  // namespace shardwise::detail
