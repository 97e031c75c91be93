#include "shardwise/convert/detail/safetensors/safetensors_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "shardwise/convert/detail/safetensors/safetensors_dtypes.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/detail/json_reader.h"
#include "shardwise/storage/utf8.h"

namespace shardwise::detail {
namespace {

[[noreturn]] void corrupt_header(const std::string& what) { throw Error(ErrorCode::corrupt, what); }

[[noreturn]] void corrupt_tensor(std::string_view tensor, const std::string& what) {
  corrupt_header(fmt::format("tensor {}: {}", shown(tensor), what));
}

class HeaderJson final : public JsonReader {
 public:
  SafetensorsHeader take() { return std::move(header_); }

  bool start_object() override {
    switch (in_) {
      case In::text:
        in_ = In::names;
        return true;
      case In::names:
        in_ = name_ == kMetadataName ? In::metadata : In::tensor;
        return true;
      default:
        return refuse("an object");
    }
  }

  bool key(std::string_view key) override {
    switch (in_) {
      case In::names:
        begin_value(key);
        break;
      case In::metadata:
        header_.metadata.emplace_back(key, "");
        break;
      default:
        begin_field(key);
    }
    return true;
  }

  bool string(std::string_view text) override {
    if (in_ == In::metadata) {
      header_.metadata.back().second = text;
    } else if (in_ == In::tensor && field_ == kDType) {
      read_dtype(text);
    } else {
      return refuse("a string");
    }
    return true;
  }

  bool start_array() override {
    if (in_ != In::tensor || (field_ != kShape && field_ != kOffsets)) return refuse("a list");
    in_ = field_ == kShape ? In::shape : In::offsets;
    return true;
  }

  bool number(std::uint64_t value) override {
    if (in_ == In::offsets) {
      if (offsets_ == 2) corrupt_tensor(name_, "data_offsets has more than two integers");
      (offsets_++ == 0 ? tensor_.begin : tensor_.end) = value;
    } else if (in_ == In::shape) {
      add_extent(value);
    } else {
      return refuse("a number");
    }
    return true;
  }

  bool end_array(std::size_t) override {
    if (in_ == In::offsets && offsets_ != 2) {
      corrupt_tensor(name_, "data_offsets has not two integers");
    }
    in_ = In::tensor;
    return true;
  }

  bool end_object(std::size_t) override {
    if (in_ == In::tensor) end_tensor();
    in_ = In::names;
    return true;
  }

 private:
  enum class In { text, names, metadata, tensor, shape, offsets };
  enum Field : unsigned { kNone = 0, kDType = 1, kShape = 2, kOffsets = 4, kAll = 7 };

  void begin_value(std::string_view name) {
    name_ = name;
    if (name_ == kMetadataName && std::exchange(has_metadata_, true)) {
      corrupt_header("__metadata__ is there twice");
    }
    tensor_ = {};
    seen_ = kNone;
    field_ = kNone;
    offsets_ = 0;
  }

  void begin_field(std::string_view field) {
    field_ = field == "dtype"          ? kDType
             : field == "shape"        ? kShape
             : field == "data_offsets" ? kOffsets
                                       : kNone;
    if (field_ == kNone) corrupt_tensor(name_, "unknown field " + shown(field));
    if ((seen_ & field_) != 0) corrupt_tensor(name_, fmt::format("{} is there twice", field));
    seen_ |= field_;
  }

  void read_dtype(std::string_view text) {
    if (text.empty()) corrupt_tensor(name_, "dtype is empty");
    packed_bits_ = packed_safetensors_bits(text);
    const std::optional<DType> dtype =
        packed_bits_ != 0 ? DType::u8 : parse_safetensors_dtype(text);
    if (packed_bits_ != 0) packed_dtype_ = text;
    if (!dtype) tensor_.foreign_dtype = text;
    tensor_.dtype = dtype.value_or(DType::u8);
  }

  void add_extent(std::uint64_t extent) {
    if (extent > std::numeric_limits<std::int64_t>::max()) {
      corrupt_tensor(name_, fmt::format("shape has an extent of {}", extent));
    }
    if (tensor_.shape.size() == kMaxRank) {
      throw Error(ErrorCode::unsupported,
                  fmt::format("tensor {}: it has more than {} dims", shown(name_), kMaxRank));
    }
    tensor_.shape.push_back(static_cast<std::int64_t>(extent));
  }

  void end_tensor() {
    if (seen_ != kAll) {
      corrupt_tensor(name_, fmt::format("{} is missing", (seen_ & kDType) == 0   ? "dtype"
                                                         : (seen_ & kShape) == 0 ? "shape"
                                                                                 : "data_offsets"));
    }
    if (packed_bits_ != 0) pack_shape();
    tensor_.name = name_;
    header_.tensors.push_back(std::move(tensor_));
  }

  /// Elements of less than a byte become the bytes that hold them, as in torch's float4_e2m1fn_x2.
  /// If a row ends within a byte, the dtype stays foreign.
  void pack_shape() {
    const std::int64_t extent = tensor_.shape.empty() ? 1 : tensor_.shape[tensor_.shape.size() - 1];
    if (extent % 8 * packed_bits_ % 8 != 0) {
      tensor_.foreign_dtype = packed_dtype_;
      return;
    }
    tensor_.shape[tensor_.shape.size() - 1] =
        extent / 8 * packed_bits_ + extent % 8 * packed_bits_ / 8;
  }

  std::string where() const {
    if (in_ == In::text) return "header";
    if (name_ == kMetadataName) {
      return in_ == In::metadata ? "__metadata__ " + shown(header_.metadata.back().first)
                                 : "__metadata__";
    }
    constexpr const char* kFields[] = {"", ", dtype", ", shape", "", ", data_offsets"};
    return fmt::format("tensor {}{}", shown(name_), kFields[field_]);
  }

  std::string_view needed() const {
    if (in_ == In::text) return "an object";
    if (in_ == In::metadata) return "a string";
    if (in_ == In::names) {
      return name_ == kMetadataName ? "an object of strings"
                                    : "an object with dtype, shape and data_offsets";
    }
    if (in_ == In::tensor) return field_ == kDType ? "a string" : "a list of integers";
    return "an integer of at least 0";
  }

  bool refuse(std::string_view found) override {
    corrupt_header(fmt::format("{}: found {}, needed is {}", where(), found, needed()));
  }
  bool unreadable(const JsonProblem& problem) override {
    corrupt_header("the header " + problem.to_string());
  }

  SafetensorsHeader header_;
  In in_ = In::text;
  std::string name_;  // of the current value
  SafetensorsEntry tensor_;
  unsigned field_ = kNone, seen_ = kNone;
  int offsets_ = 0;
  int packed_bits_ = 0;  // bits per element, if less than 8
  std::string packed_dtype_;
  bool has_metadata_ = false;
};

void check_names(std::span<const SafetensorsEntry> tensors) {
  std::vector<std::string_view> names;
  names.reserve(tensors.size());
  for (const SafetensorsEntry& tensor : tensors) names.push_back(tensor.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end()) corrupt_tensor(*twice, "it is there twice");
}

void check_size(const SafetensorsEntry& tensor, std::uint64_t data_bytes) {
  if (tensor.begin > tensor.end || tensor.end > data_bytes) {
    corrupt_tensor(tensor.name, fmt::format("its bytes [{}, {}) are not inside the file's {}",
                                            tensor.begin, tensor.end, data_bytes));
  }
  std::size_t needed = 0;
  try {
    needed = num_bytes(tensor.shape, size_bytes(tensor.dtype));
    if (!tensor.foreign_dtype.empty()) {  // an element has a bit at least
      needed = std::max<std::size_t>((needed + 7) / 8, tensor.end - tensor.begin);
    }
  } catch (const Error& error) {
    corrupt_tensor(tensor.name, error.what());
  }
  if (tensor.end - tensor.begin != needed) {
    corrupt_tensor(tensor.name, fmt::format("its bytes [{}, {}) are {}, needed for {} {} are {}",
                                            tensor.begin, tensor.end, tensor.end - tensor.begin,
                                            name(tensor.dtype), to_string(tensor.shape), needed));
  }
}

/// Checks that each byte belongs to exactly one tensor.
void check_cover_of(std::span<const SafetensorsEntry> tensors, std::uint64_t data_bytes) {
  std::vector<const SafetensorsEntry*> sorted;
  sorted.reserve(tensors.size());
  for (const SafetensorsEntry& tensor : tensors) {
    check_size(tensor, data_bytes);
    sorted.push_back(&tensor);
  }
  std::sort(sorted.begin(), sorted.end(), [](const auto* a, const auto* b) {
    return std::tie(a->begin, a->end) < std::tie(b->begin, b->end);
  });
  std::uint64_t covered = 0;
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    const SafetensorsEntry& tensor = *sorted[i];
    if (tensor.begin < covered) {
      corrupt_tensor(tensor.name,
                     fmt::format("its bytes [{}, {}) overlap those of tensor {}", tensor.begin,
                                 tensor.end, shown(sorted[i - 1]->name)));
    }
    if (tensor.begin > covered) {
      corrupt_tensor(tensor.name, fmt::format("the bytes [{}, {}) before it belong to no tensor",
                                              covered, tensor.begin));
    }
    covered = tensor.end;
  }
  if (covered != data_bytes) {
    corrupt_header(
        fmt::format("the file's bytes [{}, {}) of data belong to no tensor", covered, data_bytes));
  }
}

}  // namespace

SafetensorsHeader parse_header(std::string_view text, std::uint64_t data_bytes) {
  if (!text.starts_with('{')) corrupt_header("the header does not begin with \"{\"");
  HeaderJson json;
  json.parse(text);
  SafetensorsHeader header = json.take();
  if (const std::string* const key = repeated_key(header.metadata)) {
    corrupt_header(fmt::format("__metadata__ {} is there twice", shown(*key)));
  }
  check_names(header.tensors);
  check_cover_of(header.tensors, data_bytes);
  return header;
}

std::string header_text(std::span<const SafetensorsEntry> tensors, const StringMap& metadata) {
  std::string text(kLengthBytes, '\0');
  text += '{';
  if (!metadata.empty()) text += fmt::format("\"{}\":{},", kMetadataName, to_json(metadata));
  for (const SafetensorsEntry& tensor : tensors) {
    text += fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}},",
                        to_json(tensor.name), safetensors_dtype(tensor.dtype).value().name,
                        fmt::join(tensor.shape, ","), tensor.begin, tensor.end);
  }
  if (text.back() == ',') text.pop_back();
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = text.size() - kLengthBytes;
  if (length > kMostHeaderBytes) {
    throw Error(ErrorCode::unsupported,
                fmt::format("the header of {} tensors takes {} bytes, safetensors allows {}",
                            tensors.size(), length, kMostHeaderBytes));
  }
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    text[i] = static_cast<char>(length >> (8 * i) & 0xff);
  }
  return text;
}

}  // namespace shardwise::detail
