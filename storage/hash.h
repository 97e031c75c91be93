#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace shardwise {

/// A hash of 128 bits.
struct Hash128 {
  std::uint64_t high = 0, low = 0;

  bool operator==(const Hash128&) const = default;
};

/// XXH3 with seed 0: for finding damage, not for security.
std::uint64_t hash64(const std::byte* data, std::size_t size);
std::uint64_t hash64(std::string_view text);
Hash128 hash128(const std::byte* data, std::size_t size);
Hash128 hash128(std::string_view text);

/// hash128 of bytes that come in parts. Thread-compatible.
class Hasher128 {
 public:
  Hasher128();
  ~Hasher128();
  Hasher128(const Hasher128&) = delete;
  Hasher128& operator=(const Hasher128&) = delete;

  void update(const std::byte* data, std::size_t size);

  /// The hash of all bytes so far.
  Hash128 digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// hash64 of bytes that come in parts. Thread-compatible.
class Hasher64 {
 public:
  Hasher64();
  ~Hasher64();
  Hasher64(const Hasher64&) = delete;
  Hasher64& operator=(const Hasher64&) = delete;

  void update(const std::byte* data, std::size_t size);

  /// The hash of all bytes so far.
  std::uint64_t digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Lower-case hex, most significant digit first; 16 or 32 digits.
std::string to_hex(std::uint64_t hash);
std::string to_hex(Hash128 hash);

/// Inverse of to_hex; false if the text is not exactly 16 or 32 lower-case hex digits.
bool from_hex(std::string_view text, std::uint64_t& hash);
bool from_hex(std::string_view text, Hash128& hash);

}  // namespace shardwise
