#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <stdexcept>

namespace shardwise {

/// Changes one byte in place, which is quicker than rewriting the file.
inline void flip(const std::filesystem::path& path, std::uint64_t place, std::byte bits) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(place));
  const auto changed = static_cast<std::byte>(file.get()) ^ bits;
  file.seekp(static_cast<std::streamoff>(place));
  file.put(static_cast<char>(changed));
  file.close();
  if (!file) throw std::runtime_error("cannot change " + path.string());
}

/// Puts these bytes in the place of others.
inline void overwrite(const std::filesystem::path& path, std::uint64_t place,
                      std::span<const std::byte> bytes) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(place));
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file) throw std::runtime_error("cannot change " + path.string());
}

}  // namespace shardwise
