#include "shardwise/checkpoint/detail/write/save_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <numeric>
#include <string_view>

#include "shardwise/checkpoint/detail/json_text.h"
#include "shardwise/checkpoint/detail/write/index_file.h"
#include "shardwise/checkpoint/detail/write/writers.h"
#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

constexpr std::int64_t kSamples = 4;
constexpr std::size_t kSampleBytes = std::size_t{64} << 10;

// A part of the box from its begin on, of at most kSampleBytes and not empty.
Box sample_box(const Box& box, std::size_t element_bytes) {
  const Shape part = cut_to_bytes(box.shape(), element_bytes, kSampleBytes);
  Box sample;
  for (std::size_t d = 0; d < box.rank(); ++d) {
    sample.push_back(box.begin(d), box.begin(d) + part[d]);
  }
  return sample;
}

CodecChoice choose_by_samples(const TensorSource& source, const TensorEntry& tensor, Codec wanted) {
  if (wanted == Codec::none) return {};
  std::vector<Box> chunks;
  for (const PieceEntry& piece : tensor.pieces) {
    if (piece.layout == Layout::contiguous) continue;
    const std::int64_t count = num_chunks(piece);
    const std::int64_t wanted_chunks = std::min(kSamples, count);
    for (std::int64_t i = 0; i < wanted_chunks; ++i) {
      chunks.push_back(chunk_box(piece, i * count / wanted_chunks));
    }
  }
  if (chunks.empty()) return {};
  const std::size_t element_bytes = size_bytes(tensor.dtype);
  std::vector<std::byte> sample;
  const std::size_t samples = std::min<std::size_t>(kSamples, chunks.size());
  for (std::size_t i = 0; i < samples; ++i) {
    const Box box = sample_box(chunks[i * chunks.size() / samples], element_bytes);
    const std::size_t at = sample.size();
    sample.resize(at + num_bytes(box.shape(), element_bytes));
    call_caller([&] { source.reader->read(source.tensor, box, std::span(sample).subspan(at)); });
  }
  return choose_codec(wanted, sample, element_bytes);
}

// Sorted by name; what is not cut is cut over one device.
std::vector<TensorSource> in_order(std::vector<TensorSource> sources) {
  std::vector<std::size_t> order(sources.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return sources[a].name < sources[b].name; });
  std::vector<TensorSource> sorted;
  sorted.reserve(sources.size());
  for (const std::size_t i : order) {
    TensorSource& source = sorted.emplace_back(std::move(sources[i]));
    if (source.sharding) continue;
    source.sharding = Sharding::replicated(Mesh::line(1), info_of(source).shape.size());
  }
  return sorted;
}

// Without pieces. Neighbours mostly are cut the same way, so each way is printed once. (Not
// compared as shardings: these are equal wherever they place the same, whatever their spelling.)
std::vector<TensorEntry> describe(std::span<const TensorSource> sources) {
  std::vector<TensorEntry> tensors;
  tensors.reserve(sources.size());
  const Sharding* before = nullptr;
  for (const TensorSource& source : sources) {
    const TensorInfo& info = info_of(source);
    const Sharding& sharding = *source.sharding;
    const bool again = before != nullptr && before->mesh() == sharding.mesh() &&
                       before->spec() == sharding.spec() && before->policy() == sharding.policy();
    before = &sharding;
    tensors.push_back({.name = source.name,
                       .dtype = info.dtype,
                       .shape = info.shape,
                       .mesh = again ? tensors.back().mesh : sharding.mesh().to_string(),
                       .spec = again ? tensors.back().spec : sharding.spec().to_string(),
                       .policy = again ? tensors.back().policy : sharding.policy().to_string(),
                       .index = {},
                       .pieces = {}});
  }
  return tensors;
}

// The distinct pieces of a tensor, or all of it where it is small.
std::vector<HeldPiece> pieces_of(const TensorEntry& tensor, const Sharding& sharding,
                                 std::int64_t writers) {
  const std::size_t element_bytes = size_bytes(tensor.dtype);
  const std::size_t bytes = num_bytes(tensor.shape, element_bytes);
  if (bytes == 0) return {};
  const std::int64_t size = sharding.mesh().size();
  writers = std::min(writers, size);
  if (bytes < kContiguousBelowBytes) {
    std::vector<std::int64_t> all(static_cast<std::size_t>(writers));
    std::iota(all.begin(), all.end(), 0);
    return {{Box::whole(tensor.shape), element_bytes, std::move(all)}};
  }
  std::vector<HeldPiece> pieces;
  for (const DistinctPiece& distinct : sharding.distinct_pieces(tensor.shape)) {
    pieces.push_back({distinct.box, element_bytes, writers_of(distinct.positions, size, writers)});
  }
  return pieces;
}

PieceEntry stored_piece(const Box& box, std::size_t element_bytes, std::int64_t writer) {
  PieceEntry piece;
  piece.box = box;
  piece.file = writer;
  piece.chunk = box.shape();
  if (num_bytes(piece.chunk, element_bytes) >= kContiguousBelowBytes) {
    piece.layout = Layout::chunked;
    piece.chunk = chunk_shape(piece.chunk, element_bytes);
  }
  return piece;
}

void add_pieces(SavePlan& plan, std::int64_t writers) {
  std::vector<HeldPiece> held;
  std::vector<std::size_t> tensor_of;
  for (std::size_t t = 0; t < plan.sources.size(); ++t) {
    for (HeldPiece& piece : pieces_of(plan.tensors[t], *plan.sources[t].sharding, writers)) {
      held.push_back(std::move(piece));
      tensor_of.push_back(t);
    }
  }
  const std::vector<std::vector<WriterShare>> shares = share_out(held, writers);
  for (std::size_t p = 0; p < held.size(); ++p) {
    for (const WriterShare& share : shares[p]) {
      plan.tensors[tensor_of[p]].pieces.push_back(
          stored_piece(share.box, held[p].element_bytes, share.writer));
    }
  }
}

// Which names there are, in one table of open addressing: a set that allocates each was most of
// what the caller of save_async waits for with 10,000 tensors.
class NameTable {
 public:
  explicit NameTable(std::span<const TensorSource> sources)
      : sources_(sources), slots_(std::bit_ceil(2 * sources.size() + 1)) {}

  /// False where an earlier one has the same name.
  bool insert(std::size_t number) {
    const std::string& name = sources_[number].name;
    const std::size_t hash = std::hash<std::string_view>()(name);
    const auto tag = static_cast<std::uint32_t>(hash >> 32);
    std::size_t at = hash % slots_.size();
    for (; slots_[at].end != 0; at = (at + 1) % slots_.size()) {
      if (slots_[at].tag == tag && sources_[slots_[at].end - 1].name == name) return false;
    }
    slots_[at] = {tag, static_cast<std::uint32_t>(number + 1)};
    return true;
  }

 private:
  struct Slot {
    std::uint32_t tag = 0;  // of the hash
    std::uint32_t end = 0;  // the number and one; 0: empty
  };
  std::span<const TensorSource> sources_;
  std::vector<Slot> slots_;
};

// Writers become files: those that have nothing to write get none.
void number_files(SavePlan& plan, std::int64_t writers) {
  std::vector<std::int64_t> file(static_cast<std::size_t>(writers), -1);
  for (const TensorEntry& tensor : plan.tensors) {
    for (const PieceEntry& piece : tensor.pieces) file[static_cast<std::size_t>(piece.file)] = 0;
  }
  for (std::int64_t& number : file) {
    if (number == 0) number = plan.files++;
  }
  std::vector<std::int64_t> chunks(static_cast<std::size_t>(plan.files), 0);
  for (TensorEntry& tensor : plan.tensors) {
    for (PieceEntry& piece : tensor.pieces) {
      piece.file = file[static_cast<std::size_t>(piece.file)];
      std::int64_t& next = chunks[static_cast<std::size_t>(piece.file)];
      piece.first_chunk = next;
      next += num_chunks(piece);
      plan.chunks += num_chunks(piece);
    }
  }
}

}  // namespace

void check_sources(std::span<const TensorSource> sources) {
  NameTable names(sources);
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const TensorSource& source = sources[i];
    if (const std::string problem = name_problem(source.name); !problem.empty()) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("save: tensor name {} {}", JsonFields::shown(source.name), problem));
    }
    if (!names.insert(i)) {
      throw Error(ErrorCode::invalid_argument, fmt::format("save: tensor name {} is given twice",
                                                           JsonFields::shown(source.name)));
    }
    const auto fail = [&](const std::string& problem) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("save: tensor {:?} {}", source.name, problem));
    };
    if (!source.reader) fail("has no reader");
    if (const std::size_t there = source.reader->tensors().size(); source.tensor >= there) {
      fail(fmt::format("is number {} of its reader, which has {}", source.tensor, there));
    }
    const TensorInfo& info = info_of(source);
    if (source.sharding && source.sharding->rank() != info.shape.size()) {
      fail(fmt::format("has the sharding {} of {} dims, its shape {} has {}",
                       source.sharding->to_string(), source.sharding->rank(), to_string(info.shape),
                       info.shape.size()));
    }
    num_bytes(info.shape, size_bytes(info.dtype));
    if (!source.sharding) continue;
    try {
      // Also where the tensor is so small that it is stored whole: it is to be restored as it is
      // cut here.
      static_cast<void>(source.sharding->shard_shape(info.shape));
    } catch (const Error& e) {
      fail(fmt::format("cannot be cut by its sharding: {}", e.what()));
    }
  }
}

SavePlan plan_save(std::vector<TensorSource> sources, Codec codec, const Executor& executor,
                   std::int64_t writers) {
  SavePlan plan;
  plan.adaptive = codec == Codec::automatic;
  plan.sources = in_order(std::move(sources));
  plan.tensors = describe(plan.sources);
  add_pieces(plan, writers);
  number_files(plan, writers);

  std::vector<CodecChoice> choices(plan.sources.size());
  executor.parallel_for(std::ssize(choices), [&](std::int64_t i) {
    const auto at = static_cast<std::size_t>(i);
    choices[at] = choose_by_samples(plan.sources[at], plan.tensors[at], codec);
  });

  std::vector<std::string> names;
  for (const TensorEntry& tensor : plan.tensors) names.push_back(tensor.name);
  const std::vector<std::string> paths = index_paths(names);
  for (std::size_t t = 0; t < plan.tensors.size(); ++t) {
    TensorEntry& tensor = plan.tensors[t];
    tensor.index = paths[t];
    plan.efforts.push_back(choices[t].effort);
    plan.logical_bytes += num_bytes(tensor.shape, size_bytes(tensor.dtype));
    for (std::size_t p = 0; p < tensor.pieces.size(); ++p) {
      PieceEntry& piece = tensor.pieces[p];
      piece.dataset = fmt::format("/tensors/{}/{}", t, p);
      if (piece.layout == Layout::chunked) piece.codec = choices[t].codec;
    }
  }
  return plan;
}

}  // namespace shardwise::detail
