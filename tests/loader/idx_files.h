#pragma once

#include <zlib.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <span>
#include <stdexcept>
#include <vector>

namespace shardwise {

using Bytes = std::vector<std::byte>;

inline Bytes operator+(Bytes a, const Bytes& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

inline Bytes bytes(std::initializer_list<int> values) {
  Bytes all;
  for (const int value : values) all.push_back(static_cast<std::byte>(value));
  return all;
}

inline Bytes first_of(const Bytes& all, std::size_t count) {
  return Bytes(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count));
}

/// "0 0 type rank" and the sizes, big-endian.
inline Bytes idx_header(int type, std::initializer_list<std::uint32_t> sizes) {
  Bytes header = bytes({0, 0, type, static_cast<int>(sizes.size())});
  for (const std::uint32_t size : sizes) {
    for (const int shift : {24, 16, 8, 0}) header.push_back(static_cast<std::byte>(size >> shift));
  }
  return header;
}

/// One gzip member.
inline Bytes gzip(const Bytes& plain) {
  z_stream stream{};
  if (deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) != Z_OK) {
    throw std::bad_alloc();
  }
  Bytes packed(deflateBound(&stream, plain.size()) + 64);
  Bytes input = plain;
  stream.next_in = reinterpret_cast<Bytef*>(input.data());
  stream.avail_in = static_cast<uInt>(input.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  const int result = deflate(&stream, Z_FINISH);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  if (result != Z_STREAM_END) throw std::runtime_error("gzip did not finish");
  return packed;
}

}  // namespace shardwise
