#include "shardwise/shard/uneven_policy.h"

#include <fmt/format.h>

#include <utility>

#include "shardwise/shard/error.h"
#include "shardwise/shard/text.h"

namespace shardwise {
namespace {

constexpr std::string_view kSizesPrefix = "sizes:";

std::vector<std::vector<std::int64_t>> parse_sizes(std::string_view list, std::string_view text) {
  std::vector<std::vector<std::int64_t>> sizes;
  if (trim(list).empty()) return sizes;
  for (const std::string_view dim : split(list, ',')) {
    std::vector<std::int64_t>& of_dim = sizes.emplace_back();
    if (trim(dim) == "-") continue;
    for (const std::string_view part : split(dim, '+')) {
      const auto size = parse_count(trim(part));
      if (!size) {
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("policy \"{}\": \"{}\" is not a tile size; needed is a form "
                                "as in \"sizes:3+2,-\"",
                                text, part));
      }
      of_dim.push_back(*size);
    }
  }
  return sizes;
}

}  // namespace

UnevenPolicy UnevenPolicy::tile_sizes(std::vector<std::vector<std::int64_t>> sizes) {
  for (std::size_t dim = 0; dim < sizes.size(); ++dim) {
    std::int64_t sum = 0;
    for (const std::int64_t size : sizes[dim]) {
      if (size >= 0 && !__builtin_add_overflow(sum, size, &sum)) continue;
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("policy sizes: dim {} has a tile of size {}; needed are sizes of at "
                              "least 0 whose sum is below 2^63",
                              dim, size));
    }
  }
  UnevenPolicy policy(Kind::tile_sizes);
  policy.sizes_ = std::move(sizes);
  return policy;
}

UnevenPolicy UnevenPolicy::parse(std::string_view text) {
  const std::string_view word = trim(text);
  if (word == "ceil") return ceil();
  if (word == "strict") return strict();
  if (word == "nested_chunk" || word == "nested") return nested_chunk();
  if (word == "balanced") return balanced();
  if (word.starts_with(kSizesPrefix)) {
    return tile_sizes(parse_sizes(word.substr(kSizesPrefix.size()), text));
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("policy \"{}\": it is not known; needed is ceil, strict, nested_chunk, "
                          "balanced or sizes:3+2,-",
                          text));
}

std::string UnevenPolicy::to_string() const {
  switch (kind_) {
    case Kind::ceil:
      return "ceil";
    case Kind::strict:
      return "strict";
    case Kind::nested_chunk:
      return "nested_chunk";
    case Kind::balanced:
      return "balanced";
    case Kind::tile_sizes:
      break;
  }
  std::string text(kSizesPrefix);
  for (std::size_t dim = 0; dim < sizes_.size(); ++dim) {
    if (dim > 0) text += ',';
    text += sizes_[dim].empty() ? "-" : fmt::format("{}", fmt::join(sizes_[dim], "+"));
  }
  return text;
}

}  // namespace shardwise
