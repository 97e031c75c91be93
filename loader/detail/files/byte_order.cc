#include "shardwise/loader/detail/files/byte_order.h"

#include <cstdint>
#include <cstring>

namespace shardwise::detail {
namespace {

template <class Word, class Swap>
void swap_words(std::span<std::byte> data, Swap swap) {
  for (std::size_t at = 0; at < data.size(); at += sizeof(Word)) {
    Word word;
    std::memcpy(&word, data.data() + at, sizeof(Word));
    word = swap(word);
    std::memcpy(data.data() + at, &word, sizeof(Word));
  }
}

}  // namespace

void swap_bytes(DType dtype, std::span<std::byte> elements) {
  const bool is_complex = dtype == DType::c64 || dtype == DType::c128;
  switch (size_bytes(dtype) / (is_complex ? 2 : 1)) {
    case 2:
      return swap_words<std::uint16_t>(elements, [](auto w) { return __builtin_bswap16(w); });
    case 4:
      return swap_words<std::uint32_t>(elements, [](auto w) { return __builtin_bswap32(w); });
    case 8:
      return swap_words<std::uint64_t>(elements, [](auto w) { return __builtin_bswap64(w); });
    default:
      return;
  }
}

}  // namespace shardwise::detail
