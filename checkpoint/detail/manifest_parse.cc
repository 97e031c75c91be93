#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "shardwise/checkpoint/detail/json_text.h"
#include "shardwise/checkpoint/detail/lanes.h"
#include "shardwise/checkpoint/detail/manifest.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/plan/check_cover.h"

namespace shardwise::detail {
namespace {

// The tail of docs/checkpoint_format.md, heading "Manifest".
constexpr std::string_view kTailBegin = ",\n\"checksum\":\"";
constexpr std::string_view kTailEnd = "\"}\n";
constexpr std::size_t kTailBytes = kTailBegin.size() + 32 + kTailEnd.size();
static_assert(kTailBytes == 49);

// What one thread reads before it asks for more: a fraction of a millisecond.
constexpr std::size_t kTensorsPerJob = 512;

[[noreturn]] void refuse(const std::string& message) { throw Error(ErrorCode::corrupt, message); }

void check_checksum(std::string_view bytes) {
  if (bytes.size() > kMaxManifestBytes) {
    refuse(
        fmt::format("it has {} bytes, at most {} are possible", bytes.size(), kMaxManifestBytes));
  }
  const std::size_t content = bytes.size() - std::min(bytes.size(), kTailBytes);
  const std::string_view tail = bytes.substr(content);
  Hash128 stated;
  if (tail.size() != kTailBytes || !tail.starts_with(kTailBegin) || !tail.ends_with(kTailEnd) ||
      !from_hex(tail.substr(kTailBegin.size(), 32), stated)) {
    refuse("it does not end in its checksum");
  }
  const Hash128 found = hash128(reinterpret_cast<const std::byte*>(bytes.data()), content);
  if (found != stated) {
    refuse(
        fmt::format("its bytes have the checksum {}, it states {}", to_hex(found), to_hex(stated)));
  }
}

DType dtype_of(const JsonFields& tensor) {
  const std::string_view text = tensor.text("dtype");
  // Not parse_dtype: that takes other spellings too.
  for (const DType dtype : all_dtypes()) {
    if (shardwise::name(dtype) == text) return dtype;
  }
  tensor.fail(
      fmt::format("\"dtype\" is {}, which is none of the format's", JsonFields::shown(text)));
}

Box box_of(const JsonFields& piece, const Shape& shape) {
  const JsonValue pairs = piece.list("box");
  if (pairs.size() != shape.size()) {
    piece.fail(fmt::format("\"box\" has {} dims, the tensor has {}", pairs.size(), shape.size()));
  }
  Index begin, end;
  for (const JsonValue pair : pairs) {
    const auto [b, e] = piece.range("box", pair);
    begin.push_back(b);
    end.push_back(e);
  }
  const Box box(begin, end);
  for (std::size_t d = 0; d < box.rank(); ++d) {
    if (box.extent(d) == 0) piece.fail(fmt::format("box {} is empty", to_string(box)));
    if (box.end(d) > shape[d]) {
      piece.fail(
          fmt::format("box {} leaves the tensor's shape {}", to_string(box), to_string(shape)));
    }
  }
  return box;
}

PieceEntry piece_of(const JsonValue& value, const TensorEntry& tensor,
                    const std::string& expected) {
  const JsonFields fields(value, {.what = "tensor",
                                  .name = tensor.name,
                                  .part = " piece",
                                  .number = std::ssize(tensor.pieces)});
  PieceEntry piece;
  piece.box = box_of(fields, tensor.shape);
  piece.file = fields.integer("file");
  piece.dataset = fields.text("dataset");
  if (piece.dataset != expected) {
    fields.fail(
        fmt::format("\"dataset\" is {}, must be {:?}", JsonFields::shown(piece.dataset), expected));
  }
  piece.layout = static_cast<Layout>(fields.choice("layout", {"contiguous", "chunked"}));
  piece.codec = static_cast<StoredCodec>(fields.choice("codec", {"none", "zstd"}));
  piece.first_chunk = fields.integer("first_chunk");
  piece.chunk = fields.dims("chunk", 1);

  const Shape extents = piece.box.shape();
  if (piece.chunk.size() != extents.size()) {
    fields.fail(fmt::format("\"chunk\" has {} dims, the tensor has {}", piece.chunk.size(),
                            extents.size()));
  }
  for (std::size_t d = 0; d < extents.size(); ++d) {
    if (piece.chunk[d] > extents[d]) {
      fields.fail(fmt::format("chunk {} is larger than the piece, {}", to_string(piece.chunk),
                              to_string(extents)));
    }
  }
  if (piece.layout == Layout::contiguous) {
    if (piece.chunk != extents) {
      fields.fail(fmt::format("it is contiguous and has the extents {}, but its chunk is {}",
                              to_string(extents), to_string(piece.chunk)));
    }
    if (piece.codec != StoredCodec::none) fields.fail("it is contiguous, but its codec is zstd");
  }
  const std::size_t bytes = chunk_bytes(piece, tensor.dtype);
  if (bytes > kMaxChunkBytes) {
    fields.fail(
        fmt::format("a chunk has {} bytes, at most {} are possible", bytes, kMaxChunkBytes));
  }
  return piece;
}

TensorEntry tensor_of(const JsonValue& value, std::int64_t number) {
  const JsonFields unnamed(value, {.what = "tensor", .number = number});
  TensorEntry tensor;
  tensor.name = unnamed.text("name");
  if (const std::string problem = name_problem(tensor.name); !problem.empty()) {
    unnamed.fail(fmt::format("its name {}", problem));
  }
  const JsonFields fields(value, {.what = "tensor", .name = tensor.name});
  tensor.dtype = dtype_of(fields);
  tensor.shape = fields.dims("shape", 0);
  tensor.mesh = fields.text("mesh");
  tensor.spec = fields.text("spec");
  tensor.policy = fields.text_or("policy", kUsualPolicy);
  tensor.index = fields.text("index");
  if (tensor.index.empty() || tensor.index.find('\0') != std::string::npos) {
    fields.fail("\"index\" is not the path of a dataset");
  }
  const JsonValue pieces = fields.list("pieces");
  tensor.pieces.reserve(pieces.size());
  try {
    const std::size_t bytes = num_bytes(tensor.shape, size_bytes(tensor.dtype));
    if (bytes == 0 && pieces.size() > 0) fields.fail("it has no elements, but pieces");
    std::vector<Box> boxes;
    for (const JsonValue piece : pieces) {
      tensor.pieces.push_back(
          piece_of(piece, tensor, fmt::format("/tensors/{}/{}", number, tensor.pieces.size())));
      boxes.push_back(tensor.pieces.back().box);
    }
    check_cover(boxes, tensor.shape);
  } catch (const Error& e) {
    if (e.code() == ErrorCode::corrupt) throw;
    fields.fail(e.what());  // an overflow, or pieces that do not cover
  }
  return tensor;
}

FileEntry file_of(const JsonValue& value, std::int64_t number) {
  const JsonFields fields(value, {.what = "file", .number = number});
  FileEntry file;
  file.name = fields.text("name");
  file.bytes = static_cast<std::uint64_t>(fields.integer("bytes"));
  const auto [begin, end] = fields.range("data");
  file.data_begin = static_cast<std::uint64_t>(begin);
  file.data_end = static_cast<std::uint64_t>(end);
  const std::string what = fmt::format("file {} table", number);
  const JsonFields table(fields.any("table"), {.what = what.c_str()});
  file.table_address = static_cast<std::uint64_t>(table.integer("address"));
  file.chunks = table.integer("chunks");
  file.table_hash = table.hash64("xxh3");
  file.structure_hash = fields.hash128("structure");
  if (const std::string problem = file_problem(file); !problem.empty()) fields.fail(problem);
  return file;
}

void check_names(const Manifest& manifest) {
  const TensorEntry* before = nullptr;
  std::set<std::string_view> files;
  std::unordered_set<std::string_view> indices(manifest.tensors.size());
  for (const TensorEntry& tensor : manifest.tensors) {
    if (before != nullptr && before->name >= tensor.name) {
      refuse(fmt::format("tensor {:?} follows {:?}: names must be sorted and distinct", tensor.name,
                         before->name));
    }
    before = &tensor;
    if (!indices.insert(tensor.index).second) {
      refuse(fmt::format("tensor {:?}: another tensor has the index {} too", tensor.name,
                         JsonFields::shown(tensor.index)));
    }
  }
  for (const FileEntry& file : manifest.files) {
    if (!files.insert(file.name).second)
      refuse(fmt::format("file {} comes twice", JsonFields::shown(file.name)));
  }
}

/// Each record of a file's chunk table belongs to exactly one piece.
void check_records(const Manifest& manifest) {
  std::vector<std::tuple<std::int64_t, std::int64_t, const TensorEntry*, std::size_t>> pieces;
  for (const TensorEntry& tensor : manifest.tensors) {
    for (std::size_t p = 0; p < tensor.pieces.size(); ++p) {
      const PieceEntry& piece = tensor.pieces[p];
      if (piece.file >= static_cast<std::int64_t>(manifest.files.size())) {
        refuse(fmt::format("tensor {:?} piece {}: \"file\" is {}, there are {}", tensor.name, p,
                           piece.file, manifest.files.size()));
      }
      pieces.emplace_back(piece.file, piece.first_chunk, &tensor, p);
    }
  }
  std::sort(pieces.begin(), pieces.end());
  std::vector<std::int64_t> next(manifest.files.size(), 0);
  for (const auto& [file, first, tensor, p] : pieces) {
    const auto f = static_cast<std::size_t>(file);
    const std::int64_t chunks = manifest.files[f].chunks;
    const std::int64_t wanted = num_chunks(tensor->pieces[p]);
    if (first != next[f] || wanted > chunks - first) {
      refuse(fmt::format(
          "tensor {:?} piece {}: its {} chunks begin at record {} of {} in file {}, must begin at "
          "{}, where the last piece's end, and fit",
          tensor->name, p, wanted, first, chunks, file, next[f]));
    }
    next[f] += wanted;
  }
  for (std::size_t f = 0; f < next.size(); ++f) {
    if (next[f] != manifest.files[f].chunks) {
      refuse(fmt::format("file {}: {} chunk records belong to pieces, the table has {}", f, next[f],
                         manifest.files[f].chunks));
    }
  }
}

/// In the order of the list, and of several that are wrong the first one is reported, whatever the
/// threads.
std::vector<TensorEntry> tensors_of(const JsonValue& list, std::int64_t threads) {
  std::vector<JsonValue> values;
  values.reserve(list.size());
  for (const JsonValue value : list) values.push_back(value);
  const std::size_t jobs = (values.size() + kTensorsPerJob - 1) / kTensorsPerJob;
  // Memory is taken as tensors turn out to be right: a list may be long and hold none.
  std::vector<std::vector<TensorEntry>> parts(jobs);
  run_lanes({.jobs = jobs,
             .lanes = std::clamp<std::size_t>(static_cast<std::size_t>(threads), 1,
                                              std::max<std::size_t>(jobs, 1)),
             .run = [&](std::size_t job, std::size_t) {
               const std::size_t end = std::min(values.size(), (job + 1) * kTensorsPerJob);
               parts[job].reserve(end - job * kTensorsPerJob);
               for (std::size_t t = job * kTensorsPerJob; t < end; ++t) {
                 parts[job].push_back(tensor_of(values[t], static_cast<std::int64_t>(t)));
               }
             }});
  std::vector<TensorEntry> tensors;
  tensors.reserve(values.size());
  for (auto& part : parts) std::move(part.begin(), part.end(), std::back_inserter(tensors));
  return tensors;
}

Manifest parse(std::string_view bytes, std::int64_t threads) {
  check_checksum(bytes);
  const JsonDocument document(bytes, kMaxNesting);
  const JsonFields fields(document.root(), {.what = "the whole"});
  if (fields.text("format") != kFormatName) {
    fields.fail(fmt::format("\"format\" is {}, must be \"{}\"",
                            JsonFields::shown(fields.text("format")), kFormatName));
  }
  const JsonValue version = fields.any("version");
  if (!version.is_integer()) fields.fail("\"version\" is not an integer");
  if (version.to_int64() != kFormatVersion) {
    throw Error(ErrorCode::unsupported,
                fmt::format("it has format version {}, this build reads version {}", version.raw(),
                            kFormatVersion));
  }
  Manifest manifest;
  fields.hash128("id");
  manifest.id = fields.text("id");
  manifest.step = fields.integer("step");
  manifest.user_json = fields.any("user").raw();
  manifest.tensors = tensors_of(fields.list("tensors"), threads);
  for (const JsonValue value : fields.list("files")) {
    manifest.files.push_back(file_of(value, static_cast<std::int64_t>(manifest.files.size())));
  }
  const JsonFields index(fields.any("index"), {.what = "index"});
  index.choice("name", {kIndexName});
  manifest.index_bytes = static_cast<std::uint64_t>(index.integer("bytes"));
  manifest.index_hash = index.hash128("xxh3");
  check_names(manifest);
  check_records(manifest);
  return manifest;
}

}  // namespace

std::string file_problem(const FileEntry& file) {
  if (file.name.empty() || file.name == "." || file.name == ".." || file.name == kManifestName ||
      file.name == kIndexName || file.name.find('/') != std::string::npos ||
      file.name.find('\0') != std::string::npos) {
    return fmt::format("{} cannot be the name of a shard file", JsonFields::shown(file.name));
  }
  const std::uint64_t begin = file.data_begin, end = file.data_end, table = file.table_address;
  if (begin > end) return fmt::format("\"data\" begins at {} and ends at {}", begin, end);
  if (end > file.bytes) {
    return fmt::format("\"data\" is [{}, {}), but the file has {} bytes", begin, end, file.bytes);
  }
  if (file.chunks > kMaxChunksPerFile) {
    return fmt::format("its table has {} chunks, at most {} are possible", file.chunks,
                       kMaxChunksPerFile);
  }
  // Divided, not multiplied: nothing overflows.
  if (table < begin || table > end || file.chunks < 0 ||
      static_cast<std::uint64_t>(file.chunks) > (end - table) / sizeof(ChunkRecord)) {
    return fmt::format("the {} records of its table, at {}, are not inside the data, [{}, {})",
                       file.chunks, table, begin, end);
  }
  return {};
}

Manifest parse_manifest(std::string_view bytes, const std::string& path, std::int64_t threads) {
  try {
    return parse(bytes, threads);
  } catch (const Error& e) {
    throw Error(e.code(), fmt::format("read manifest {}: {}", path, e.what()));
  }
}

}  // namespace shardwise::detail
