#include "shardwise/checkpoint/save.h"

#include <fmt/format.h>

#include <utility>

#include "shardwise/checkpoint/detail/host_reader.h"
#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

TensorInfo named_info(const std::string& name, const ArraySpec& spec) {
  return {.name = name, .dtype = spec.dtype, .shape = spec.shape};
}

class ArrayReader final : public BoxReader {
 public:
  ArrayReader(TensorInfo info, ShardedArray array)
      : info_(std::move(info)), array_(std::move(array)) {}

  std::span<const TensorInfo> tensors() const override { return {&info_, 1}; }
  void read(std::size_t /*tensor*/, const Box& box, std::span<std::byte> out) const override {
    array_.read(box, out);
  }
  const std::byte* contiguous(std::size_t /*tensor*/, const Box& box) const override {
    return array_.contiguous(box);
  }

 private:
  TensorInfo info_;
  ShardedArray array_;
};

class CallbackReader final : public BoxReader {
 public:
  using Function = std::function<void(const Box&, std::span<std::byte>)>;

  CallbackReader(TensorInfo info, Function read) : info_(std::move(info)), read_(std::move(read)) {}

  std::span<const TensorInfo> tensors() const override { return {&info_, 1}; }
  void read(std::size_t /*tensor*/, const Box& box, std::span<std::byte> out) const override {
    read_(box, out);
  }

 private:
  TensorInfo info_;
  Function read_;
};

}  // namespace

std::string_view name(Codec codec) {
  switch (codec) {
    case Codec::automatic:
      return "auto";
    case Codec::zstd:
      return "zstd";
    case Codec::none:
      return "none";
  }
  return "unknown";
}

Codec parse_codec(std::string_view text) {
  for (const Codec codec : {Codec::automatic, Codec::zstd, Codec::none}) {
    if (name(codec) == text) return codec;
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("codec {:?}: it is not known; needed is auto, zstd or none", text));
}

std::string_view name(Existing existing) {
  switch (existing) {
    case Existing::fail:
      return "fail";
    case Existing::replace:
      return "replace";
    case Existing::skip:
      return "skip";
  }
  return "unknown";
}

Existing parse_existing(std::string_view text) {
  for (const Existing existing : {Existing::fail, Existing::replace, Existing::skip}) {
    if (name(existing) == text) return existing;
  }
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("save: found existing {:?}, needed \"fail\", \"replace\" or \"skip\"", text));
}

TensorSource tensor_source(std::string name, ShardedArray array) {
  Sharding sharding = array.sharding();
  auto reader = std::make_shared<ArrayReader>(named_info(name, array.spec()), std::move(array));
  return {std::move(name), std::move(reader), 0, std::move(sharding)};
}

TensorSource host_source(std::string name, ArraySpec spec, std::span<const std::byte> bytes) {
  const std::size_t needed = num_bytes(spec.shape, size_bytes(spec.dtype));
  if (bytes.size() != needed) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("save: tensor {:?}: found {} bytes, needed {}, those of {} {}", name,
                    bytes.size(), needed, shardwise::name(spec.dtype), to_string(spec.shape)));
  }
  auto reader = std::make_shared<detail::HostReader>(named_info(name, spec), bytes.data());
  return {
      .name = std::move(name), .reader = std::move(reader), .sharding = std::move(spec.sharding)};
}

TensorSource shards_source(std::string name, ArraySpec spec, const std::vector<HostShard>& shards) {
  const auto fail = [&](const Box& box, const std::string& found_and_needed) {
    throw Error(ErrorCode::invalid_argument, fmt::format("save: tensor {:?}, shard {}: {}", name,
                                                         to_string(box), found_and_needed));
  };
  std::vector<ConstBoxView> views;
  for (const auto& [box, bytes, dtype] : shards) {
    if (box.rank() != spec.shape.size() || !Box::whole(spec.shape).contains(box)) {
      fail(box, fmt::format("found a box that leaves the shape {}, needed one inside it",
                            to_string(spec.shape)));
    }
    if (dtype && *dtype != spec.dtype) {
      fail(box, fmt::format("found {}, needed {}", shardwise::name(*dtype),
                            shardwise::name(spec.dtype)));
    }
    const std::size_t needed = num_bytes(box.shape(), size_bytes(spec.dtype));
    if (bytes.size() != needed) {
      fail(box, fmt::format("found {} bytes, needed {}", bytes.size(), needed));
    }
    for (const ConstBoxView& other : views) {
      if (intersect(box, other.box).empty()) continue;
      fail(box,
           fmt::format("found elements that {} has, too, needed each once", to_string(other.box)));
    }
    views.push_back({bytes.data(), box});
  }
  auto reader = std::make_shared<detail::HostReader>(named_info(name, spec), std::move(views));
  return {
      .name = std::move(name), .reader = std::move(reader), .sharding = std::move(spec.sharding)};
}

TensorSource callback_tensor(std::string name, ArraySpec spec,
                             std::function<void(const Box&, std::span<std::byte>)> read) {
  if (!read) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("save: tensor {:?} has no read function", name));
  }
  auto reader = std::make_shared<CallbackReader>(named_info(name, spec), std::move(read));
  return {std::move(name), std::move(reader), 0, std::move(spec.sharding)};
}

}  // namespace shardwise
