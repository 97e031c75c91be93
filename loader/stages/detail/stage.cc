#include "shardwise/loader/stages/detail/stage.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "shardwise/shard/error.h"
#include "shardwise/storage/hash.h"

namespace shardwise::detail {

OneSourceStage::OneSourceStage(std::shared_ptr<const Source> inner, std::string_view stage)
    : inner_(std::move(inner)) {
  if (!inner_) {
    throw Error(ErrorCode::invalid_argument, fmt::format("{}: the source is null", stage));
  }
}

void will_read_together(const Source& source, std::int64_t begin, std::int64_t end) {
  if (!source.reads_together()) return;
  for (std::int64_t record = begin; record < end; ++record) source.will_read({record, 0, 0});
}

std::string described_name(std::string_view name) {
  const bool is_word = !name.empty() && std::ranges::all_of(name, [](char c) {
    return ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z') || ('0' <= c && c <= '9') || c == '_' ||
           c == '.' || c == '/';
  });
  return is_word ? std::string(name) : fmt::format("{:?}", name);
}

Facts& Facts::add(std::uint64_t fact) {
  facts_.push_back(fact);
  return *this;
}

Facts& Facts::add(std::string_view text) { return add(hash64(text)); }

Facts& Facts::add(double value) { return add(std::bit_cast<std::uint64_t>(value)); }

Facts& Facts::add(std::span<const std::int64_t> values) {
  add(std::uint64_t{values.size()});
  for (const std::int64_t value : values) add(value);
  return *this;
}

Facts& Facts::add(const Field& field) {
  return add(name(field.dtype)).add(std::span(field.shape)).add(std::uint64_t{field.ragged});
}

std::uint64_t Facts::hash() const {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(facts_));
  return hash64(bytes.data(), bytes.size());
}

std::int64_t multiply_add(std::int64_t a, std::int64_t b, std::int64_t c, std::string_view what) {
  std::int64_t result = 0;
  if (__builtin_mul_overflow(a, b, &result) || __builtin_add_overflow(result, c, &result)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} overflows: {} * {} + {} is over 2^63 - 1", what, a, b, c));
  }
  return result;
}

std::int64_t most_length(const Field& field) { return field.shape.empty() ? 1 : field.shape[0]; }

std::int64_t checked_length(const Source& source, const Sample& sample, std::size_t field) {
  const Field& of = source.fields()[field];
  const std::int64_t most = most_length(of);
  if (!of.ragged) return most;
  const std::int64_t length = source.length(sample, field);
  if (length < 0 || length > most) {
    throw Error(ErrorCode::corrupt,
                fmt::format("length of field \"{}\" of record {} is {}, needed is 0 "
                            "to {}",
                            of.name, sample.record, length, most));
  }
  return length;
}

}  // namespace shardwise::detail
