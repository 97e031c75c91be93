#include "shardwise/checkpoint/detail/parity/parity_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cstring>
#include <limits>
#include <optional>

#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

constexpr std::uint64_t kMagic = 0x3130595449524150;  // "PARITY01"
constexpr std::size_t kFirstWords = 7, kHashWords = 2, kWordBytes = sizeof(std::uint64_t);

// A file whose blocks have more hashes is not ours; this bounds the memory of a reader.
constexpr std::uint64_t kMostBlocks = std::uint64_t{1} << 25;

Error not_as_needed(const std::string& path, const std::string& problem) {
  return {ErrorCode::corrupt, fmt::format("read {}: {}", path, problem)};
}

std::vector<std::uint64_t> first_words(const ParityLayout& layout, Hash128 hash) {
  return {kMagic,
          layout.file_bytes,
          layout.block_bytes(),
          static_cast<std::uint64_t>(layout.parity_blocks),
          layout.groups(),
          hash.high,
          hash.low};
}

/// Absent if the file has none of the sizes that are possible.
std::optional<ParityLayout> layout_of_size(std::uint64_t bytes, ParityLayout layout) {
  for (layout.parity_blocks = 1; layout.parity_blocks <= kMostParityBlocks;
       ++layout.parity_blocks) {
    const std::uint64_t needed = layout.bytes();
    if (needed == bytes) return layout;
    if (needed > bytes) break;
  }
  return std::nullopt;
}

/// As the first copy states it, which may be of a file that was cut off.
std::optional<ParityLayout> stated_layout(File& file, ParityLayout layout) {
  std::uint64_t words[kFirstWords];
  if (file.size() < sizeof(words)) return std::nullopt;
  file.read_at(0, reinterpret_cast<std::byte*>(words), sizeof(words));
  if (words[3] < 1 || words[3] > static_cast<std::uint64_t>(kMostParityBlocks)) return std::nullopt;
  layout.parity_blocks = static_cast<std::int64_t>(words[3]);
  return layout.header_bytes() <= file.size() ? std::optional(layout) : std::nullopt;
}

}  // namespace

ParityOf parity_of(const FileEntry& entry) { return {entry.bytes, entry.description_hash}; }

ParityOf parity_of(const LinkedFile& linked) { return {linked.bytes, linked.description_hash}; }

std::size_t ParityLayout::block_bytes() const {
  const std::uint64_t step = kParityStepBytes;
  if (file_bytes >= most_block_bytes) return most_block_bytes;
  return static_cast<std::size_t>((file_bytes + step - 1) / step * step);
}

std::uint64_t ParityLayout::blocks() const {
  return file_bytes / block_bytes() + (file_bytes % block_bytes() != 0 ? 1 : 0);
}

std::uint64_t ParityLayout::groups() const {
  const std::uint64_t most = kMostGroupBlocks - static_cast<std::uint64_t>(parity_blocks);
  return (blocks() + most - 1) / most;
}

std::uint64_t ParityLayout::header_bytes() const {
  const std::uint64_t hashes =
      blocks() + groups() * static_cast<std::uint64_t>(parity_blocks) + 1;  // and its own
  return (kFirstWords + kHashWords * hashes) * kWordBytes;
}

std::uint64_t ParityLayout::bytes() const {
  return 2 * header_bytes() + groups() * static_cast<std::uint64_t>(parity_blocks) * block_bytes();
}

std::size_t ParityLayout::sources(std::uint64_t group) const {
  return static_cast<std::size_t>((blocks() - group + groups() - 1) / groups());
}

std::size_t ParityLayout::bytes_of(std::uint64_t block) const {
  return static_cast<std::size_t>(
      std::min<std::uint64_t>(block_bytes(), file_bytes - block * block_bytes()));
}

std::vector<std::byte> print_parity_header(const ParityHeader& header) {
  std::vector<std::uint64_t> words = first_words(header.layout, header.hash);
  const auto add = [&words](Hash128 hash) { words.insert(words.end(), {hash.high, hash.low}); };
  std::ranges::for_each(header.data, add);
  std::ranges::for_each(header.parity, add);
  const auto so_far = std::as_bytes(std::span(words));
  add(hash128(so_far.data(), so_far.size()));
  const auto bytes = std::as_bytes(std::span(words));
  assert(bytes.size() == header.layout.header_bytes());
  return {bytes.begin(), bytes.end()};
}

ParityHeader parse_parity_header(std::span<const std::byte> bytes, const ParityLayout& layout,
                                 const ParityOf& of, const std::string& path) {
  std::vector<std::uint64_t> words(bytes.size() / kWordBytes);
  assert(bytes.size() == layout.header_bytes() && bytes.size() % kWordBytes == 0);
  std::memcpy(words.data(), bytes.data(), bytes.size());
  const Hash128 hash = hash128(bytes.data(), bytes.size() - kHashWords * kWordBytes);
  const auto hash_at = [&words](std::size_t at) { return Hash128{words[at], words[at + 1]}; };
  const Hash128 stated = hash_at(words.size() - kHashWords);
  if (hash != stated) {
    throw not_as_needed(path, fmt::format("found the hash {} of the header, needed is {}",
                                          to_hex(hash), to_hex(stated)));
  }
  if (!std::ranges::equal(first_words(layout, of.hash), std::span(words).first(kFirstWords))) {
    throw not_as_needed(path, fmt::format("found the parity of another file, needed is that of one "
                                          "of {} bytes and the hash {}",
                                          of.bytes, to_hex(of.hash)));
  }
  ParityHeader header{.layout = layout, .hash = of.hash, .data = {}, .parity = {}};
  std::size_t at = kFirstWords;
  for (std::uint64_t i = 0; i < layout.blocks(); ++i, at += kHashWords) {
    header.data.push_back(hash_at(at));
  }
  for (; at < words.size() - kHashWords; at += kHashWords) header.parity.push_back(hash_at(at));
  return header;
}

ReadParityHeader read_parity_header(File& file, const std::string& path, const ParityOf& of,
                                    std::size_t most_block_bytes) {
  const std::uint64_t size = file.size();
  ParityLayout any{.file_bytes = of.bytes, .most_block_bytes = most_block_bytes};
  if (of.bytes == 0 || any.blocks() > kMostBlocks || any.header_bytes() > size) {
    throw not_as_needed(
        path, fmt::format("found {} bytes, needed is the parity of a file of {}", size, of.bytes));
  }
  const auto read = [&](const ParityLayout& layout, std::uint64_t at) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(layout.header_bytes()));
    file.read_at(at, bytes.data(), bytes.size());
    return parse_parity_header(bytes, layout, of, path);
  };
  const std::optional<ParityLayout> by_size = layout_of_size(size, any);
  if (!by_size) {
    const std::optional<ParityLayout> stated = stated_layout(file, any);
    if (!stated)
      throw not_as_needed(path, fmt::format("found {} bytes, needed are as many as a "
                                            "parity file has, and a header",
                                            size));
    return {read(*stated, 0), fmt::format("found {} bytes, needed are {}", size, stated->bytes())};
  }
  std::optional<Error> first, second;
  ReadParityHeader result;
  const auto attempt = [&](std::uint64_t at, std::optional<Error>& error) {
    try {
      result.header = read(*by_size, at);
    } catch (const Error& e) {
      error = e;
    }
  };
  attempt(by_size->second_header(), second);
  attempt(0, first);
  if (first && second) throw Error(*first, first->what());
  if (first) result.problem = first->what();
  if (second) result.problem = second->what();
  return result;
}

}  // namespace shardwise::detail
