#include "shardwise/checkpoint/detail/group/shard_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "shardwise/checkpoint/detail/group/packer.h"
#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

constexpr std::string_view kRecordName = "shardwise writer's record 1";

void put_tensor(Packer& packer, const TensorEntry& tensor) {
  packer.text(tensor.name);
  packer.text(name(tensor.dtype));
  packer.number(std::uint64_t{tensor.shape.size()});
  for (const std::int64_t extent : tensor.shape) packer.number(extent);
  packer.number(std::uint64_t{tensor.sharding ? 1u : 0u});
  packer.text(tensor.mesh);
  packer.text(tensor.spec);
  packer.text(tensor.policy);
  packer.number(std::uint64_t{tensor.listed.size()});
  for (const WriterPiece& piece : tensor.listed) {
    for (std::size_t d = 0; d < tensor.shape.size(); ++d) {
      packer.number(piece.box.begin(d));
      packer.number(piece.box.end(d));
    }
  }
}

/// The shardings that texts stand for; the last one is kept.
class SpelledShardings {
 public:
  const Sharding& of(const TensorEntry& tensor) {
    std::string key = fmt::format("{}\n{}\n{}", tensor.mesh, tensor.spec, tensor.policy);
    if (!last_ || key != last_key_) {
      last_ = Sharding(Mesh::parse(tensor.mesh), PartitionSpec::parse(tensor.spec),
                       UnevenPolicy::parse(tensor.policy));
      last_key_ = std::move(key);
    }
    return *last_;
  }

 private:
  std::optional<Sharding> last_;
  std::string last_key_;
};

TensorEntry take_tensor(Unpacker& unpacker, std::int64_t writer, SpelledShardings& shardings) {
  TensorEntry tensor;
  tensor.name = unpacker.text();
  tensor.dtype = parse_dtype(unpacker.text());
  for (std::uint64_t left = unpacker.number(); left > 0; --left) {
    tensor.shape.push_back(unpacker.integer());
  }
  const bool has_sharding = unpacker.number() != 0;
  tensor.mesh = unpacker.text();
  tensor.spec = unpacker.text();
  tensor.policy = unpacker.text();
  // Neighbours mostly are cut the same way.
  if (has_sharding) tensor.sharding = shardings.of(tensor);
  for (std::uint64_t left = unpacker.number(); left > 0; --left) {
    Box box;
    for (std::size_t d = 0; d < tensor.shape.size(); ++d) {
      const std::int64_t begin = unpacker.integer();
      box.push_back(begin, unpacker.integer());
    }
    tensor.listed.push_back({writer, box});
  }
  return tensor;
}

std::string description(const TensorEntry& tensor) {
  std::string text = fmt::format("{} {}", name(tensor.dtype), to_string(tensor.shape));
  if (!tensor.sharding) return text + " in boxes";
  return text + fmt::format(" over {} as {} ({})", tensor.mesh, tensor.spec, tensor.policy);
}

/// What the writers say of their tensors, together.
class Tensors {
 public:
  void add(TensorEntry tensor, std::int64_t writer) {
    const auto [at, is_new] = known_.try_emplace(tensor.name, Known{{}, writer, {}});
    Known& known = at->second;
    known.with.push_back(writer);
    if (is_new) {
      known.tensor = std::move(tensor);
      return;
    }
    if (description(known.tensor) != description(tensor)) {
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("publish: tensor {:?} is {} for writer {}, {} for writer {}", tensor.name,
                      description(known.tensor), known.first, description(tensor), writer));
    }
    std::ranges::move(tensor.listed, std::back_inserter(known.tensor.listed));
  }

  /// In the order of names.
  std::vector<TensorEntry> take(const WriterMap& writers) {
    std::vector<TensorEntry> tensors;
    tensors.reserve(known_.size());
    for (auto& [name, known] : known_) {
      if (known.tensor.sharding) check_all_have(known, writers);
      tensors.push_back(std::move(known.tensor));
    }
    return tensors;
  }

 private:
  struct Known {
    TensorEntry tensor;
    std::int64_t first;
    std::vector<std::int64_t> with;  // ascending
  };

  static void check_all_have(const Known& known, const WriterMap& writers) {
    if (std::ssize(known.with) == writers.num_writers()) return;
    std::vector<Box> boxes;
    for (std::int64_t writer = 0; writer < writers.num_writers(); ++writer) {
      if (std::ranges::binary_search(known.with, writer)) continue;
      add_pieces_of(writer, writers, known.tensor, boxes);
      if (boxes.empty()) continue;
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("publish: writer {} was not given tensor {:?}, of which it is to "
                              "write {}",
                              writer, known.tensor.name, to_string(boxes.front())));
    }
  }

  std::map<std::string, Known, std::less<>> known_;
};

}  // namespace

Bytes encode(const WriterPart& part) {
  Packer packer;
  packer.text(kRecordName);
  packer.number(part.writer);
  packer.number(std::uint64_t{part.writers.starts().size()});
  for (const std::int64_t start : part.writers.starts()) packer.number(start);
  packer.number(part.file.bytes);
  packer.number(part.file.data_end);
  packer.hash(part.file.description_hash);
  packer.number(part.logical_bytes);
  packer.number(part.stored_bytes);
  packer.number(part.chunks);
  packer.number(std::uint64_t{part.tensors.size()});
  for (const TensorEntry& tensor : part.tensors) put_tensor(packer, tensor);
  return packer.take();
}

WriterPart decode_part(std::span<const std::byte> bytes) {
  Unpacker unpacker(bytes);
  if (unpacker.text() != kRecordName) {
    throw Error(ErrorCode::invalid_argument,
                "publish: a record is none of write_shards of this version of shardwise");
  }
  WriterPart part;
  part.writer = unpacker.integer();
  std::vector<std::int64_t> starts;
  for (std::uint64_t left = unpacker.number(); left > 0; --left) {
    starts.push_back(unpacker.integer());
  }
  part.writers = WriterMap(std::move(starts));
  part.file.writer = part.writer;
  part.file.bytes = unpacker.number();
  part.file.data_end = unpacker.number();
  part.file.description_hash = unpacker.hash();
  part.logical_bytes = unpacker.number();
  part.stored_bytes = unpacker.number();
  part.chunks = unpacker.integer();
  SpelledShardings shardings;
  for (std::uint64_t left = unpacker.number(); left > 0; --left) {
    part.tensors.push_back(take_tensor(unpacker, part.writer, shardings));
  }
  return part;
}

Manifest merge(std::vector<WriterPart> parts, SaveStats& stats) {
  std::ranges::sort(parts, {}, &WriterPart::writer);
  Manifest manifest;
  manifest.writers = parts.empty() ? WriterMap() : parts.front().writers;
  Tensors tensors;
  std::int64_t next = 0;
  for (WriterPart& part : parts) {
    if (part.writer != next++ || part.writers != manifest.writers) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("publish: there is a record of writer {} of {}, needed is writer {} "
                              "of {} with the same devices",
                              part.writer, part.writers.num_writers(), next - 1,
                              manifest.writers.num_writers()));
    }
    for (TensorEntry& tensor : part.tensors) tensors.add(std::move(tensor), part.writer);
    stats.logical_bytes += part.logical_bytes;
    stats.stored_bytes += part.stored_bytes;
    stats.chunks += part.chunks;
    if (part.file.bytes == 0) continue;
    stats.file_bytes += part.file.bytes;
    part.file.name = shard_file_name(part.writer, manifest.writers.num_writers());
    manifest.files.push_back(std::move(part.file));
  }
  if (next != manifest.writers.num_writers()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("publish: there are records of {} writers, needed are {}", next,
                            manifest.writers.num_writers()));
  }
  manifest.tensors = tensors.take(manifest.writers);
  return manifest;
}

}  // namespace shardwise::detail
