#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "shardwise/checkpoint/detail/json_text.h"
#include "shardwise/checkpoint/detail/manifest_check.h"
#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

// The tail of docs/checkpoint_format.md, heading "Manifest".
constexpr std::string_view kTailBegin = ",\n\"checksum\":\"";
constexpr std::string_view kTailEnd = "\"}\n";
constexpr std::size_t kTailBytes = kTailBegin.size() + 32 + kTailEnd.size();
static_assert(kTailBytes == 49);

[[noreturn]] void refuse_text(const std::string& message) {
  throw Error(ErrorCode::corrupt, message);
}

void check_checksum(std::string_view bytes) {
  if (bytes.size() > kMaxManifestBytes) {
    refuse_text(
        fmt::format("it has {} bytes, at most {} are possible", bytes.size(), kMaxManifestBytes));
  }
  const std::size_t content = bytes.size() - std::min(bytes.size(), kTailBytes);
  const std::string_view tail = bytes.substr(content);
  Hash128 stated;
  if (tail.size() != kTailBytes || !tail.starts_with(kTailBegin) || !tail.ends_with(kTailEnd) ||
      !from_hex(tail.substr(kTailBegin.size(), 32), stated)) {
    refuse_text("it does not end in its checksum");
  }
  const Hash128 found = hash128(reinterpret_cast<const std::byte*>(bytes.data()), content);
  if (found != stated) {
    refuse_text(
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
  const auto pairs = piece.list("box");
  if (pairs.Size() != shape.size()) {  // or more than a box can have
    piece.fail(fmt::format("\"box\" has {} dims, the tensor has {}", pairs.Size(), shape.size()));
  }
  Index begin, end;
  for (const JsonValue& pair : pairs) {
    const auto [b, e] = piece.range("box", pair);
    begin.push_back(b);
    end.push_back(e);
  }
  return Box(begin, end);
}

PieceEntry piece_of(const JsonValue& value, const TensorEntry& tensor) {
  const JsonFields fields(value, {.what = "tensor",
                                  .name = tensor.name,
                                  .part = " piece",
                                  .number = std::ssize(tensor.pieces)});
  PieceEntry piece;
  piece.box = box_of(fields, tensor.shape);
  piece.file = fields.integer("file");
  piece.dataset = fields.text("dataset");
  piece.layout = static_cast<Layout>(fields.choice("layout", {"contiguous", "chunked"}));
  piece.codec = static_cast<StoredCodec>(fields.choice("codec", {"none", "zstd"}));
  piece.first_chunk = fields.integer("first_chunk");
  piece.chunk = fields.dims("chunk", 1);
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
  const auto pieces = fields.list("pieces");
  tensor.pieces.reserve(pieces.Size());
  for (const JsonValue& piece : pieces) tensor.pieces.push_back(piece_of(piece, tensor));
  check_tensor(tensor, number);
  return tensor;
}

FileEntry file_of(const JsonValue& value, const Manifest& manifest) {
  const std::int64_t number = std::ssize(manifest.files);
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
  if (manifest.has_decoded_hashes()) {
    const std::string decoded_what = fmt::format("file {} decoded", number);
    const JsonFields decoded(fields.any("decoded"), {.what = decoded_what.c_str()});
    file.decoded_address = static_cast<std::uint64_t>(decoded.integer("address"));
    file.decoded_hash = decoded.hash64("xxh3");
  }
  const std::string problem = file_problem(file, manifest.has_decoded_hashes());
  if (!problem.empty()) fields.fail(problem);
  return file;
}

Manifest parse(std::string_view bytes) {
  check_checksum(bytes);
  const JsonDocument document(bytes, kMaxNesting);
  const JsonFields fields(document.root(), {.what = "the whole"});
  if (fields.text("format") != kFormatName) {
    fields.fail(fmt::format("\"format\" is {}, must be \"{}\"",
                            JsonFields::shown(fields.text("format")), kFormatName));
  }
  const JsonValue& version = fields.any("version");
  if (!version.IsNumber() || version.IsDouble()) fields.fail("\"version\" is not an integer");
  if (!version.IsInt() || version.GetInt() != kFormatVersion) {
    throw Error(ErrorCode::unsupported,
                fmt::format("it has format version {}, this build reads version {}",
                            document.raw_member("version"), kFormatVersion));
  }
  Manifest manifest;
  manifest.minor = fields.integer_or("minor", 0);
  fields.hash128("id");
  manifest.id = fields.text("id");
  manifest.step = fields.integer("step");
  fields.any("user");
  manifest.user_json = document.raw_member("user");
  // Memory is taken as tensors turn out to be right: a list may be long and hold none.
  for (const JsonValue& value : fields.list("tensors")) {
    manifest.tensors.push_back(tensor_of(value, std::ssize(manifest.tensors)));
  }
  for (const JsonValue& value : fields.list("files")) {
    manifest.files.push_back(file_of(value, manifest));
  }
  const JsonFields index(fields.any("index"), {.what = "index"});
  index.choice("name", {kIndexName});
  manifest.index_bytes = static_cast<std::uint64_t>(index.integer("bytes"));
  manifest.index_hash = index.hash128("xxh3");
  check_lists(manifest.tensors, manifest.files);
  return manifest;
}

}  // namespace

Manifest parse_manifest(std::string_view bytes, const std::string& path) {
  try {
    return parse(bytes);
  } catch (const Error& e) {
    throw Error(e.code(), fmt::format("read manifest {}: {}", path, e.what()));
  }
}

}  // namespace shardwise::detail
