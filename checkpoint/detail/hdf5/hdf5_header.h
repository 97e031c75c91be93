#pragma once

#include <cassert>
#include <cstdint>
#include <string_view>

#include "shardwise/checkpoint/detail/hdf5/hdf5_bytes.h"

namespace shardwise::detail {

/// An object header, version 2, in one chunk, without times. Thread-compatible.
///
///   Hdf5Header header(out);
///   header.message(0x0A, 0, [](Hdf5Bytes& body) { body.put(std::uint16_t{0}); });
///   const std::uint64_t address = header.finish();
class Hdf5Header {
 public:
  /// Flags of messages.
  static constexpr std::uint8_t kConstant = 1, kNotShared = 4;

  /// `out` must outlive it; until finish() nothing else may be put there.
  explicit Hdf5Header(Hdf5Bytes& out) : out_(out), begin_(out.align()) {
    out_.put(std::string_view("OHDR"));
    out_.put(std::uint8_t{2});     // version
    out_.put(std::uint8_t{0x02});  // its size has four bytes
    out_.put(std::uint32_t{0});    // patched by finish()
  }

  /// `body` puts at most 65,535 bytes.
  template <class Body>
  void message(std::uint8_t type, std::uint8_t flags, Body&& body) {
    out_.put(type);
    const std::uint64_t size_at = out_.here();
    out_.put(std::uint16_t{0});
    out_.put(flags);
    const std::uint64_t body_at = out_.here();
    body(out_);
    assert(out_.here() - body_at <= UINT16_MAX);
    out_.patch(size_at, static_cast<std::uint16_t>(out_.here() - body_at));
  }

  /// The header's address.
  std::uint64_t finish() {
    constexpr std::uint64_t kPrefix = 10;
    out_.patch(begin_ + 6, static_cast<std::uint32_t>(out_.here() - begin_ - kPrefix));
    out_.put_checksum(begin_);
    return begin_;
  }

 private:
  Hdf5Bytes& out_;
  std::uint64_t begin_;
};

}  // namespace shardwise::detail
