// Parity files: any bytes are refused as corrupt, or the restored bytes have the hashes that they
// state, and no read leaves any bounds.
//
// The input: one byte that says what to leave wrong and whether the file is there, one byte for the
// number of parity blocks, and the bytes that the parity file has from its begin on, over those of
// a right one; its length is that of a right one unless the first byte says otherwise. The hash of
// each header is made right.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "fuzz/require.h"
#include "shardwise/mend/detail/parity_file.h"
#include "shardwise/shard/error.h"
#include "testing/memory_files.h"

namespace shardwise {
namespace {

using Bytes = std::vector<std::byte>;

constexpr std::size_t kFileBytes = 20'000, kBlockBytes = 1024;
constexpr detail::ParityOf kOf{kFileBytes, {5, 6}};

// Bits of the first byte.
constexpr unsigned kWrongHeader = 1, kMissing = 2, kDamaged = 4, kOtherSize = 8;

/// The parity of a file of zeros, which is zeros.
Bytes right_parity(const detail::ParityLayout& layout) {
  detail::ParityHeader header{.layout = layout, .hash = kOf.hash, .data = {}, .parity = {}};
  const Bytes zeros(kBlockBytes);
  for (std::uint64_t b = 0; b < layout.blocks(); ++b) {
    header.data.push_back(hash128(zeros.data(), layout.bytes_of(b)));
  }
  header.parity.resize(layout.groups() * static_cast<std::uint64_t>(layout.parity_blocks),
                       hash128(zeros.data(), zeros.size()));
  const Bytes printed = print_parity_header(header);
  Bytes bytes(layout.bytes());
  std::ranges::copy(printed, bytes.begin());
  std::ranges::copy(printed, bytes.begin() + static_cast<std::ptrdiff_t>(layout.second_header()));
  return bytes;
}

void seal(Bytes& bytes, const detail::ParityLayout& layout, std::uint64_t at) {
  if (at + layout.header_bytes() > bytes.size()) return;
  const std::size_t size = static_cast<std::size_t>(layout.header_bytes()) - 16;
  const Hash128 hash = hash128(bytes.data() + at, size);
  std::memcpy(bytes.data() + at + size, &hash.high, 8);
  std::memcpy(bytes.data() + at + size + 8, &hash.low, 8);
}

void run(std::span<const std::byte> input) {
  if (input.size() < 2) return;
  const auto flags = std::to_integer<unsigned>(input[0]);
  const detail::ParityLayout layout{kFileBytes, 1 + std::to_integer<int>(input[1]) % 30,
                                    kBlockBytes};
  Bytes parity = right_parity(layout);
  const auto own = input.subspan(2, std::min(input.size() - 2, parity.size()));
  std::ranges::copy(own, parity.begin());
  if ((flags & kOtherSize) != 0) parity.resize(own.size());
  if ((flags & kWrongHeader) == 0) {
    seal(parity, layout, 0);
    seal(parity, layout, layout.second_header());
  }
  Bytes file(kFileBytes);
  if ((flags & kDamaged) != 0) file[kFileBytes / 2] = std::byte{1};
  MemoryFileSystem memory({{"parity", parity}, {"file", file}});
  try {
    const std::unique_ptr<File> opened = memory.open("parity");
    detail::ParityHeader header =
        detail::read_parity_header(*opened, "parity", kOf, kBlockBytes).header;
    const std::vector<Hash128> stated = header.data;
    std::shared_ptr<File> there;
    if ((flags & kMissing) == 0) there = memory.open("file");
    mend_detail::RestoredFile restored(std::move(there), memory.open("parity"), std::move(header),
                                       "file");
    Bytes block;
    for (std::uint64_t b = 0; b < layout.blocks(); ++b) {
      block.resize(layout.bytes_of(b));
      try {
        restored.read_at(b * kBlockBytes, block.data(), block.size());
        require(hash128(block.data(), block.size()) == stated[static_cast<std::size_t>(b)],
                "restore", "has another hash than is stated");
      } catch (const Error& e) {
        require(e.code() == ErrorCode::io, "restore", e.what());
      }
    }
  } catch (const Error& e) {
    require(e.code() == ErrorCode::corrupt, "open", e.what());
  }
}

}  // namespace
}  // namespace shardwise

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  shardwise::run(std::as_bytes(std::span(data, size)));
  return 0;
}
