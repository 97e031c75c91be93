#include "shardwise/loader/sources/detail/tf_example.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "shardwise/loader/detail/files/byte_order.h"

namespace shardwise::detail {
namespace {

using Bytes = std::span<const std::byte>;

// The fields of one protobuf message, one after the other.
class ProtoFields {
 public:
  static constexpr unsigned kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5;

  explicit ProtoFields(Bytes message) : rest_(message) {}

  // The next field's number and wire type; false at the end.
  bool next() {
    if (rest_.empty()) return false;
    const std::uint64_t tag = varint();
    wire_type = static_cast<unsigned>(tag & 7);
    number = tag >> 3;
    if (number == 0 || number >= std::uint64_t{1} << 29) {
      throw ExampleFault{"a field number out of range"};
    }
    return true;
  }

  bool at_end() const { return rest_.empty(); }

  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      const auto byte = std::to_integer<std::uint64_t>(take(1)[0]);
      value |= (byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    throw ExampleFault{"a number of over 64 bits"};
  }

  Bytes bytes() { return take(varint()); }
  Bytes fixed32() { return take(4); }

  void skip() {
    switch (wire_type) {
      case kVarint:
        varint();
        return;
      case kFixed64:
        take(8);
        return;
      case kBytes:
        bytes();
        return;
      case kFixed32:
        take(4);
        return;
      default:
        throw ExampleFault{fmt::format("a field of wire type {}", wire_type)};
    }
  }

  bool is(std::uint64_t wanted, unsigned type) const {
    return number == wanted && wire_type == type;
  }

  std::uint64_t number = 0;
  unsigned wire_type = 0;

 private:
  Bytes take(std::uint64_t count) {
    if (count > rest_.size()) {
      throw ExampleFault{fmt::format("found {} bytes of a field, needed {}", rest_.size(), count)};
    }
    const Bytes taken = rest_.first(count);
    rest_ = rest_.subspan(count);
    return taken;
  }

  Bytes rest_;
};

void add_floats(Bytes packed, ExampleFeature& feature) {
  if (packed.size() % sizeof(float) != 0) {
    throw ExampleFault{fmt::format("{} bytes of floats, needed are whole ones", packed.size())};
  }
  const std::size_t before = feature.floats.size(), count = packed.size() / sizeof(float);
  if (count == 0) return;
  feature.floats.resize(before + count);
  std::memcpy(feature.floats.data() + before, packed.data(), packed.size());
  if (kBigEndianHost) {
    swap_bytes(DType::f32, std::as_writable_bytes(std::span(feature.floats).subspan(before)));
  }
}

void read_list(Bytes list, ExampleFeature& feature) {
  using Kind = ExampleFeature::Kind;
  for (ProtoFields fields(list); fields.next();) {
    if (feature.kind == Kind::bytes && fields.is(1, ProtoFields::kBytes)) {
      feature.bytes = fields.bytes();
      ++feature.count;
    } else if (feature.kind == Kind::floats && fields.is(1, ProtoFields::kBytes)) {
      add_floats(fields.bytes(), feature);
    } else if (feature.kind == Kind::floats && fields.is(1, ProtoFields::kFixed32)) {
      add_floats(fields.fixed32(), feature);
    } else if (feature.kind == Kind::integers && fields.is(1, ProtoFields::kBytes)) {
      for (ProtoFields packed(fields.bytes()); !packed.at_end();) {
        feature.integers.push_back(static_cast<std::int64_t>(packed.varint()));
      }
    } else if (feature.kind == Kind::integers && fields.is(1, ProtoFields::kVarint)) {
      feature.integers.push_back(static_cast<std::int64_t>(fields.varint()));
    } else {
      fields.skip();
    }
  }
  if (feature.kind != Kind::bytes) {
    feature.count = feature.floats.size() + feature.integers.size();
  }
}

ExampleFeature read_feature(Bytes message) {
  ExampleFeature feature;
  for (ProtoFields fields(message); fields.next();) {
    if (fields.wire_type != ProtoFields::kBytes || fields.number > 3) {
      fields.skip();
      continue;
    }
    const auto kind = static_cast<ExampleFeature::Kind>(fields.number);
    if (kind != feature.kind) feature = {.kind = kind};
    read_list(fields.bytes(), feature);
  }
  return feature;
}

void read_entry(Bytes message, std::span<const std::string_view> names,
                std::span<ExampleFeature> features) {
  Bytes key, value;
  for (ProtoFields fields(message); fields.next();) {
    if (fields.is(1, ProtoFields::kBytes)) {
      key = fields.bytes();
    } else if (fields.is(2, ProtoFields::kBytes)) {
      value = fields.bytes();
    } else {
      fields.skip();
    }
  }
  const std::string_view name(reinterpret_cast<const char*>(key.data()), key.size());
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i] == name) features[i] = read_feature(value);
  }
}

template <class T>
void put(std::int64_t value, std::byte* out) {
  if (!std::in_range<T>(value))
    throw ExampleFault{fmt::format("the number {}, which does not fit", value)};
  const T narrow = static_cast<T>(value);
  std::memcpy(out, &narrow, sizeof narrow);
}

// Refuses a number that the type rounds to an infinite one.
void check_finite(std::span<const float> values, DType dtype, const std::byte* elements) {
  if (size_bytes(dtype) >= sizeof(float)) return;
  std::vector<float> rounded(values.size());
  convert(dtype, elements, DType::f32, reinterpret_cast<std::byte*>(rounded.data()),
          rounded.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (std::isfinite(rounded[i]) || !std::isfinite(values[i])) continue;
    throw ExampleFault{fmt::format("the number {}, which does not fit", values[i])};
  }
}

void put_integer(std::int64_t value, DType dtype, std::byte* out) {
  switch (dtype) {
    case DType::i64:
      return put<std::int64_t>(value, out);
    case DType::i32:
      return put<std::int32_t>(value, out);
    case DType::i16:
      return put<std::int16_t>(value, out);
    case DType::i8:
      return put<std::int8_t>(value, out);
    case DType::u64:
      return put<std::uint64_t>(value, out);
    case DType::u32:
      return put<std::uint32_t>(value, out);
    case DType::u16:
      return put<std::uint16_t>(value, out);
    case DType::u8:
      return put<std::uint8_t>(value, out);
    case DType::boolean:
      if (value != 0 && value != 1)
        throw ExampleFault{fmt::format("the number {}, which does not fit", value)};
      *out = static_cast<std::byte>(value);
      return;
    default: {
      convert(DType::i64, reinterpret_cast<const std::byte*>(&value), dtype, out, 1);
      const auto real = static_cast<float>(value);
      check_finite({&real, 1}, dtype, out);
    }
  }
}

}  // namespace

void read_example(std::span<const std::byte> example, std::span<const std::string_view> names,
                  std::span<ExampleFeature> features) {
  std::fill(features.begin(), features.end(), ExampleFeature{});
  for (ProtoFields fields(example); fields.next();) {
    if (!fields.is(1, ProtoFields::kBytes)) {
      fields.skip();
      continue;
    }
    for (ProtoFields map(fields.bytes()); map.next();) {
      if (map.is(1, ProtoFields::kBytes)) {
        read_entry(map.bytes(), names, features);
      } else {
        map.skip();
      }
    }
  }
}

void feature_elements(const ExampleFeature& feature, DType dtype,
                      std::vector<std::byte>& elements) {
  const std::size_t bytes = size_bytes(dtype);
  switch (feature.kind) {
    case ExampleFeature::Kind::none:
      throw ExampleFault{"no list"};
    case ExampleFeature::Kind::bytes:
      if (feature.count != 1) {
        throw ExampleFault{fmt::format("{} byte strings, needed is 1", feature.count)};
      }
      if (feature.bytes.size() % bytes != 0) {
        throw ExampleFault{fmt::format("{} bytes, needed are whole elements of type {}",
                                       feature.bytes.size(), name(dtype))};
      }
      elements.assign(feature.bytes.begin(), feature.bytes.end());
      if (kBigEndianHost) swap_bytes(dtype, elements);
      return;
    case ExampleFeature::Kind::floats:
      if (dtype > DType::bf16) {
        throw ExampleFault{fmt::format("a list of floats, needed is {}", name(dtype))};
      }
      elements.resize(feature.count * bytes);
      convert(DType::f32, reinterpret_cast<const std::byte*>(feature.floats.data()), dtype,
              elements.data(), feature.count);
      check_finite(feature.floats, dtype, elements.data());
      return;
    case ExampleFeature::Kind::integers:
      if (!is_computed(dtype)) {
        throw ExampleFault{fmt::format("a list of integers, needed is {}", name(dtype))};
      }
      elements.resize(feature.count * bytes);
      for (std::size_t i = 0; i < feature.count; ++i) {
        put_integer(feature.integers[i], dtype, elements.data() + i * bytes);
      }
  }
}

}  // namespace shardwise::detail
