#include "shardwise/checkpoint/detail/write/save_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <numeric>
#include <utility>

#include "shardwise/checkpoint/detail/format/manifest_check.h"
#include "shardwise/checkpoint/detail/lanes/lanes.h"
#include "shardwise/checkpoint/detail/lanes/scratch_pool.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/hash.h"
#include "shardwise/storage/utf8.h"

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

struct Sampler {
  CodecChooser chooser = {};
  std::vector<std::byte> sample = {};

  std::size_t held_bytes() const { return chooser.held_bytes() + sample.capacity(); }
};

// The pieces [first, end) of the tensor, all in one file.
CodecChoice choose_by_samples(Sampler& sampler, const TensorSource& source,
                              const TensorEntry& tensor, std::size_t first, std::size_t end,
                              Codec wanted) {
  if (wanted == Codec::none) return {};
  std::vector<std::pair<std::size_t, std::int64_t>> chunks;  // piece and its chunk
  for (std::size_t p = first; p < end; ++p) {
    const PieceEntry piece = tensor.pieces[p];
    if (piece.layout == Layout::contiguous) continue;
    const std::int64_t count = num_chunks(piece);
    const std::int64_t wanted_chunks = std::min(kSamples, count);
    for (std::int64_t i = 0; i < wanted_chunks; ++i)
      chunks.emplace_back(p, i * count / wanted_chunks);
  }
  if (chunks.empty()) return {};
  const std::size_t element_bytes = size_bytes(tensor.dtype);
  std::vector<std::byte>& sample = sampler.sample;
  sample.clear();
  const std::size_t samples = std::min<std::size_t>(kSamples, chunks.size());
  for (std::size_t i = 0; i < samples; ++i) {
    const auto [piece, chunk] = chunks[i * chunks.size() / samples];
    const Box box = sample_box(chunk_box(tensor.pieces[piece], chunk), element_bytes);
    const std::size_t at = sample.size();
    sample.resize(at + num_bytes(box.shape(), element_bytes));
    call_caller([&] { source.reader->read(source.tensor, box, std::span(sample).subspan(at)); });
  }
  return sampler.chooser.choose(wanted, sample, element_bytes);
}

// Sorted by name; a tensor without a sharding is one that every device holds.
std::vector<TensorSource> in_order(std::vector<TensorSource> sources, const WriterMap& writers) {
  const Mesh all = Mesh::line(writers.num_writers() == 1 ? 1 : writers.num_devices());
  std::vector<std::size_t> order(sources.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return sources[a].name < sources[b].name; });
  std::vector<TensorSource> sorted;
  sorted.reserve(sources.size());
  for (const std::size_t i : order) {
    TensorSource& source = sorted.emplace_back(std::move(sources[i]));
    if (source.sharding || source.boxes) continue;
    source.sharding = Sharding::replicated(all, info_of(source).shape.size());
  }
  return sorted;
}

// The tensors without their pieces.
std::vector<TensorEntry> describe(std::span<const TensorSource> sources, std::int64_t writer) {
  std::vector<TensorEntry> tensors;
  tensors.reserve(sources.size());
  for (const TensorSource& source : sources) {
    const TensorInfo& info = info_of(source);
    TensorEntry& tensor = tensors.emplace_back(
        TensorEntry{.name = source.name, .dtype = info.dtype, .shape = info.shape});
    tensor.sharding = source.sharding;
    if (!source.boxes) continue;
    for (const Box& box : *source.boxes) tensor.listed.push_back({writer, box});
  }
  return tensors;
}

PieceEntry stored_piece(const Box& box, std::size_t element_bytes, std::int64_t file) {
  PieceEntry piece;
  piece.box = box;
  piece.file = file;
  piece.chunk = box.shape();
  if (num_bytes(piece.chunk, element_bytes) >= kContiguousBelowBytes) {
    piece.layout = Layout::chunked;
    piece.chunk = chunk_shape(piece.chunk, element_bytes);
  }
  return piece;
}

// The pieces of the writers and the files that they are in, numbered: a writer of nothing has none.
void add_pieces(SavePlan& plan, WriterRange mine) {
  std::vector<Box> boxes;
  for (std::int64_t writer = mine.first; writer < mine.end; ++writer) {
    const auto file = std::ssize(plan.files);
    FileEntry entry;
    entry.writer = writer;
    entry.name = shard_file_name(writer, plan.writers.num_writers());
    PieceDatasets datasets;
    for (std::size_t t = 0; t < plan.tensors.size(); ++t) {
      TensorEntry& tensor = plan.tensors[t];
      const std::size_t element_bytes = size_bytes(tensor.dtype);
      boxes.clear();
      add_pieces_of(writer, plan.writers, tensor, boxes);
      if (mine.end - mine.first == 1) tensor.pieces.reserve(boxes.size(), tensor.shape.size());
      for (const Box& box : boxes) {
        PieceEntry piece = stored_piece(box, element_bytes, file);
        piece.dataset = datasets.next(t);
        piece.first_chunk = entry.chunks;
        tensor.pieces.push_back(piece);
        entry.chunks += num_chunks(piece);
        plan.logical_bytes += num_bytes(box.shape(), element_bytes);
      }
    }
    plan.chunks += entry.chunks;
    if (entry.chunks > 0) plan.files.push_back(std::move(entry));
  }
}

// Open addressing: with sorting or std::set, this check dominated the time that save_async blocks.
void check_distinct(std::span<const TensorSource> sources) {
  std::vector<std::uint32_t> slots(std::bit_ceil(2 * sources.size() + 1));  // number and 1; 0: none
  for (std::uint32_t i = 0; i < sources.size(); ++i) {
    const std::string& name = sources[i].name;
    std::size_t at = hash64(name) % slots.size();
    for (; slots[at] != 0; at = (at + 1) % slots.size()) {
      if (sources[slots[at] - 1].name != name) continue;
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("save: tensor name {} is given twice", shown(name)));
    }
    slots[at] = i + 1;
  }
}

// Why these cannot be the pieces of a tensor; empty if they can, or none are listed.
std::string boxes_problem(const TensorSource& source) {
  if (!source.boxes) return {};
  if (source.sharding) return "has both a sharding and boxes";
  const Shape& shape = info_of(source).shape;
  for (const Box& box : *source.boxes) {
    if (box.rank() != shape.size() || !Box::whole(shape).contains(box)) {
      return fmt::format("has the box {}, which leaves its shape {}", to_string(box),
                         to_string(shape));
    }
    if (box.empty()) return fmt::format("has the empty box {}", to_string(box));
  }
  return {};
}

// Chooses the codec of a tensor's pieces in each file. Returns the fewest bytes that they take.
std::size_t choose_codecs(Sampler& sampler, SavePlan& plan, std::size_t number, Codec codec) {
  std::size_t least = 0;
  TensorEntry& tensor = plan.tensors[number];
  PieceList& pieces = tensor.pieces;
  for (std::size_t first = 0, end = 0; first < pieces.size(); first = end) {
    const std::int64_t file = pieces.file(first);
    while (end < pieces.size() && pieces.file(end) == file) ++end;
    const CodecChoice choice =
        choose_by_samples(sampler, plan.sources[number], tensor, first, end, codec);
    plan.efforts[static_cast<std::size_t>(file) * plan.tensors.size() + number] = choice.effort;
    const double part = choice.codec == StoredCodec::none ? 1 : choice.stored_part / 2;
    for (std::size_t p = first; p < end; ++p) {
      PieceEntry piece = pieces[p];
      const std::size_t bytes = num_bytes(piece.box.shape(), size_bytes(tensor.dtype));
      if (piece.layout != Layout::chunked) {
        least += bytes;
        continue;
      }
      least += static_cast<std::size_t>(part * static_cast<double>(bytes));
      piece.codec = choice.codec;
      pieces.set(p, piece);
    }
  }
  return least;
}

}  // namespace

void check_sources(std::span<const TensorSource> sources) {
  for (const TensorSource& source : sources) {
    if (const std::string problem = name_problem(source.name); !problem.empty()) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("save: tensor name {} {}", shown(source.name), problem));
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
    check_readable(info, "save");
    num_bytes(info.shape, size_bytes(info.dtype));
    if (const std::string problem = boxes_problem(source); !problem.empty()) fail(problem);
    if (!source.sharding) continue;
    if (const std::string problem = mesh_problem(source.sharding->mesh()); !problem.empty()) {
      fail(fmt::format("has a mesh that cannot be saved: {}", problem));
    }
    try {
      // Also if the tensor is so small that it is stored whole: it is to be restored as it is
      // cut here.
      static_cast<void>(source.sharding->shard_shape(info.shape));
    } catch (const Error& e) {
      fail(fmt::format("cannot be cut by its sharding: {}", e.what()));
    }
  }
  check_distinct(sources);
}

std::int64_t devices_of(std::span<const TensorSource> sources, std::int64_t devices) {
  DeviceId last = 0;
  for (const TensorSource& source : sources) {
    if (!source.sharding) continue;
    last = std::max(last, last_device(source.sharding->mesh()));
    if (devices == 0 || last < devices) continue;
    throw Error(ErrorCode::invalid_argument,
                fmt::format("tensor {:?} is cut over device {}, the job has devices 0 to {}",
                            source.name, last, devices - 1));
  }
  return devices == 0 ? last + 1 : devices;
}

WriterMap writers_for(std::span<const TensorSource> sources, std::int64_t count,
                      std::int64_t devices) {
  if (count == 1) return {};
  return WriterMap::even(devices_of(sources, devices), count);
}

SavePlan plan_save(std::vector<TensorSource> sources, Codec codec, const Executor& executor,
                   const WriterMap& writers, WriterRange mine) {
  SavePlan plan;
  plan.writers = writers;
  plan.adaptive = codec == Codec::automatic;
  plan.sources = in_order(std::move(sources), writers);
  plan.tensors = describe(plan.sources, mine.first);
  add_pieces(plan, mine);

  plan.efforts.resize(plan.files.size() * plan.tensors.size());
  plan.least_bytes = plan.logical_bytes;
  if (codec == Codec::none) return plan;
  std::atomic<std::size_t> least = 0;
  // A lane's memory is kept for its next tensor: new pages took longer than the coder.
  ScratchPool<Sampler> samplers;
  // On lanes: a source may wait for a disk or for another process.
  run_lanes({.jobs = plan.tensors.size(),
             .lanes = static_cast<std::size_t>(executor.threads()),
             .run = [&](std::size_t t, std::size_t) {
               const ScratchPool<Sampler>::Loan sampler(samplers);
               least += choose_codecs(*sampler, plan, t, codec);
             }});
  plan.least_bytes = least;
  return plan;
}

}  // namespace shardwise::detail
