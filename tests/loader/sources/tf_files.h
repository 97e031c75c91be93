#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "loader/idx_files.h"
#include "loader/sources/source_reads.h"
#include "shardwise/loader/sources/detail/tf_frames.h"

namespace shardwise {

template <class T>
Bytes little_endian_bytes(T value) {
  Bytes all;
  for (std::size_t i = 0; i < sizeof(T); ++i)
    all.push_back(static_cast<std::byte>(value >> (8 * i)));
  return all;
}

/// One record as TFRecord files have it.
inline Bytes tf_frame(const Bytes& data) {
  const Bytes length = little_endian_bytes<std::uint64_t>(data.size());
  return length + little_endian_bytes(detail::masked_crc(length)) + data +
         little_endian_bytes(detail::masked_crc(data));
}

inline Bytes proto_varint(std::uint64_t value) {
  Bytes all;
  for (; value >= 0x80; value >>= 7) all.push_back(static_cast<std::byte>(value | 0x80));
  all.push_back(static_cast<std::byte>(value));
  return all;
}

/// A field of a protobuf message that has a length: bytes, or a message.
inline Bytes proto_bytes(unsigned number, const Bytes& value) {
  return proto_varint(number << 3 | 2) + proto_varint(value.size()) + value;
}

inline Bytes tf_bytes(const std::vector<Bytes>& values) {
  Bytes list;
  for (const Bytes& value : values) list = list + proto_bytes(1, value);
  return proto_bytes(1, list);
}
inline Bytes tf_floats(const std::vector<float>& values) {
  return proto_bytes(2, proto_bytes(1, bytes_of(values)));
}
inline Bytes tf_integers(const std::vector<std::int64_t>& values) {
  Bytes packed;
  for (const std::int64_t value : values) {
    packed = packed + proto_varint(static_cast<std::uint64_t>(value));
  }
  return proto_bytes(3, proto_bytes(1, packed));
}

/// A tf.train.Example with these features: names, and what tf_bytes and the like made.
inline Bytes tf_example(const std::vector<std::pair<std::string_view, Bytes>>& features) {
  Bytes map;
  for (const auto& [name, feature] : features) {
    map = map + proto_bytes(1, proto_bytes(1, bytes_of(name)) + proto_bytes(2, feature));
  }
  return proto_bytes(1, map);
}

}  // namespace shardwise
