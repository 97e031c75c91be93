#include "shardwise/convert/detail/safetensors/safetensors_dtypes.h"

#include <algorithm>

namespace shardwise::detail {
namespace {

struct DTypeNames {
  std::string_view safetensors, ours;
};

// In the order of safetensors 0.8's enum, which is the order of alignment. This build may lack some
// of our dtypes.
constexpr DTypeNames kDTypeNames[] = {{"BOOL", "bool"},
                                      {"U8", "u8"},
                                      {"I8", "i8"},
                                      {"F8_E5M2", "f8_e5m2"},
                                      {"F8_E4M3", "f8_e4m3fn"},
                                      {"F8_E8M0", "f8_e8m0fnu"},
                                      {"F8_E4M3FNUZ", "f8_e4m3fnuz"},
                                      {"F8_E5M2FNUZ", "f8_e5m2fnuz"},
                                      {"I16", "i16"},
                                      {"U16", "u16"},
                                      {"F16", "f16"},
                                      {"BF16", "bf16"},
                                      {"I32", "i32"},
                                      {"U32", "u32"},
                                      {"F32", "f32"},
                                      {"C64", "c64"},
                                      {"F64", "f64"},
                                      {"I64", "i64"},
                                      {"U64", "u64"}};

std::optional<DType> our_dtype(std::string_view ours) {
  const auto all = all_dtypes();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](DType dtype) { return name(dtype) == ours; });
  if (found == all.end()) return std::nullopt;
  return *found;
}

}  // namespace

std::optional<DType> parse_safetensors_dtype(std::string_view text) {
  for (const DTypeNames& names : kDTypeNames) {
    if (names.safetensors == text) return our_dtype(names.ours);
  }
  return std::nullopt;
}

int packed_safetensors_bits(std::string_view text) {
  if (text == "F4") return 4;
  return text == "F6_E2M3" || text == "F6_E3M2" ? 6 : 0;
}

std::optional<SafetensorsDType> safetensors_dtype(DType dtype) {
  for (const DTypeNames& names : kDTypeNames) {
    if (names.ours != name(dtype)) continue;
    return SafetensorsDType{names.safetensors, static_cast<std::size_t>(&names - kDTypeNames)};
  }
  return std::nullopt;
}

}  // namespace shardwise::detail
