#include "shardwise/reshape/detail/edits/exact_cast.h"

namespace shardwise::reshape_detail {
namespace {

/// Bits of an integer's magnitude, or of a float's significand: integers of as many bits are exact.
int exact_bits(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return 53;
    case DType::f32:
      return 24;
    case DType::f16:
      return 11;
    case DType::bf16:
      return 8;
    case DType::f8_e4m3fn:
    case DType::f8_e4m3fnuz:
      return 4;
    case DType::f8_e5m2:
    case DType::f8_e5m2fnuz:
      return 3;
    case DType::f8_e8m0fnu:
      return 0;  // it has no zero
    case DType::boolean:
      return 1;
    default:
      break;
  }
  const bool is_signed = name(dtype).front() == 'i';
  return static_cast<int>(8 * size_bytes(dtype)) - (is_signed ? 1 : 0);
}

}  // namespace

bool is_float(DType dtype) { return is_floating(dtype) || name(dtype).starts_with("f8"); }

bool is_complex(DType dtype) { return dtype == DType::c64 || dtype == DType::c128; }

bool can_cast(DType from, DType to) {
  if (from == to) return true;
  if (is_complex(from) || is_complex(to)) return is_complex(from) && is_complex(to);
  if (is_float(from)) return is_float(to);
  if (to == DType::boolean) return false;
  const bool negative = name(from).front() == 'i';
  return exact_bits(from) <= exact_bits(to) &&
         (!negative || is_float(to) || name(to).front() == 'i');
}

}  // namespace shardwise::reshape_detail
