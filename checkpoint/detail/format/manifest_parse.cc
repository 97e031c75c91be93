#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "shardwise/checkpoint/detail/format/file_description.h"
#include "shardwise/checkpoint/detail/format/json_text.h"
#include "shardwise/checkpoint/detail/format/manifest_check.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/utf8.h"

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
        fmt::format("it has {} bytes, needed is at most {}", bytes.size(), kMaxManifestBytes));
  }
  const std::size_t content = bytes.size() - std::min(bytes.size(), kTailBytes);
  const std::string_view tail = bytes.substr(content);
  Hash128 stated;
  if (tail.size() != kTailBytes || !tail.starts_with(kTailBegin) || !tail.ends_with(kTailEnd) ||
      !from_hex(tail.substr(kTailBegin.size(), 32), stated)) {
    refuse_text("it does not end in its checksum");
  }
  const Hash128 found = hash128(bytes.substr(0, content));
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
  tensor.fail(fmt::format("\"dtype\" is {}, needed is a dtype of the format", shown(text)));
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

std::vector<WriterPiece> listed_pieces_of(const JsonFields& tensor_fields,
                                          const TensorEntry& tensor) {
  std::vector<WriterPiece> pieces;
  for (const JsonValue& value : tensor_fields.list("pieces")) {
    const JsonFields fields(
        value,
        {.what = "tensor", .name = tensor.name, .part = " piece", .number = std::ssize(pieces)});
    pieces.push_back({fields.integer("writer"), box_of(fields, tensor.shape)});
  }
  return pieces;
}

// All but its pieces.
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
  return tensor;
}

/// Parses a sharding's three texts, unless they are the last call's, as they mostly are. Requires
/// that texts stay as long as this is used.
class LastSharding {
 public:
  /// `parsed_mesh` is that of the text. Throws as the parsers and Sharding do.
  const Sharding& of(std::string_view mesh, const Mesh& parsed_mesh, std::string_view spec,
                     std::string_view policy) {
    const bool same_mesh = mesh.data() == mesh_.data() || mesh == mesh_;  // it may be long
    if (!last_ || !same_mesh || spec != spec_ || policy != policy_) {
      last_ = Sharding(parsed_mesh, PartitionSpec::parse(spec), UnevenPolicy::parse(policy));
      mesh_ = mesh;
      spec_ = spec;
      policy_ = policy;
    }
    return *last_;
  }

 private:
  std::optional<Sharding> last_;
  std::string_view mesh_, spec_, policy_;
};

/// The meshes of a manifest, and the shardings over them.
class Shardings {
 public:
  Shardings(const JsonFields& fields, const WriterMap& writers) {
    for (const JsonValue& value : fields.list("meshes")) {
      if (!value.IsString()) {
        fields.fail(
            fmt::format("\"meshes\" holds a JSON {}, needed are strings", kind_name(value)));
      }
      texts_.emplace_back(text_of(value));
      const auto fail = [&](const std::string& problem) {
        fields.fail(fmt::format("\"meshes\" holds {}: {}", shown(texts_.back()), problem));
      };
      try {
        meshes_.push_back(Mesh::parse(texts_.back()));
      } catch (const Error& e) {
        fail(e.what());
      }
      if (const std::string problem = mesh_problem(meshes_.back(), writers); !problem.empty()) {
        fail(problem);
      }
    }
  }

  void set(TensorEntry& tensor, const JsonFields& fields) {
    const std::int64_t number = fields.integer("mesh");
    if (number >= std::ssize(meshes_)) {
      fields.fail(fmt::format("\"mesh\" is {}, there are {}", number, meshes_.size()));
    }
    const auto mesh = static_cast<std::size_t>(number);
    try {
      tensor.sharding = last_.of(texts_[mesh], meshes_[mesh], fields.text("spec"),
                                 fields.text_or("policy", kUsualPolicy));
    } catch (const Error& e) {
      if (e.code() == ErrorCode::corrupt) throw;
      fields.fail(e.what());
    }
  }

 private:
  std::vector<std::string> texts_;
  std::vector<Mesh> meshes_;
  LastSharding last_;
};

WriterMap parsed_writers(const JsonValue& value) {
  const JsonFields writers(value, {.what = "writers"});
  const std::int64_t count = writers.integer("count", 1);
  if (count > kMostWriters) {
    writers.fail(fmt::format("\"count\" is {}, needed is at most {}", count, kMostWriters));
  }
  if (count == 1) return WriterMap();
  if (!value.HasMember("starts")) {
    const std::int64_t devices = writers.integer("devices", 1);
    if (devices > kMostDevices) {
      writers.fail(fmt::format("\"devices\" is {}, needed is at most {}", devices, kMostDevices));
    }
    return WriterMap::even(devices, count);
  }
  std::vector<std::int64_t> starts;
  for (const JsonValue& start : writers.list("starts")) {
    if (!start.IsInt64() || start.GetInt64() < (starts.empty() ? 0 : starts.back())) {
      writers.fail("\"starts\" is not a list of ascending integers");
    }
    starts.push_back(start.GetInt64());
  }
  if (std::ssize(starts) != count + 1 || starts.front() != 0 || starts.back() == 0) {
    writers.fail(
        fmt::format("\"starts\" has {} integers, needed are {} that begin with 0 and do not "
                    "end with it",
                    starts.size(), count + 1));
  }
  return WriterMap(std::move(starts));
}

// One entry per writer: [bytes, end of data, hash of the description], or null if it wrote nothing.
std::vector<FileEntry> files_of(const JsonFields& fields, const WriterMap& writers) {
  const auto list = fields.list("files");
  if (list.Size() != static_cast<std::size_t>(writers.num_writers())) {
    fields.fail(fmt::format("\"files\" has {} entries, needed is one for each of {} writers",
                            list.Size(), writers.num_writers()));
  }
  std::vector<FileEntry> files;
  std::int64_t writer = -1;
  for (const JsonValue& value : list) {
    ++writer;
    if (value.IsNull()) continue;
    FileEntry file;
    file.writer = writer;
    file.name = shard_file_name(writer, writers.num_writers());
    const auto fail = [&] {
      fields.fail(
          fmt::format("file {} is not [bytes,end of data,\"32 hex digits\"] with bytes >= "
                      "end of data >= {}",
                      writer, kDescriptionBytes));
    };
    if (!value.IsArray() || value.Size() != 3 || !value[0].IsInt64() || !value[1].IsInt64() ||
        !value[2].IsString() || !from_hex(text_of(value[2]), file.description_hash)) {
      fail();
    }
    const std::int64_t bytes = value[0].GetInt64(), end = value[1].GetInt64();
    if (end < static_cast<std::int64_t>(kDescriptionBytes) || bytes < end) fail();
    file.bytes = static_cast<std::uint64_t>(bytes);
    file.data_end = static_cast<std::uint64_t>(end);
    files.push_back(std::move(file));
  }
  return files;
}

void read_index(const JsonFields& fields, Manifest& manifest) {
  const JsonFields index(fields.any("index"), {.what = "index"});
  index.choice("name", {kIndexName});
  manifest.index_bytes = static_cast<std::uint64_t>(index.integer("bytes"));
  manifest.index_hash = index.hash128("xxh3");
}

void read_lists(const JsonFields& fields, const JsonDocument& document, Manifest& manifest) {
  manifest.writers = parsed_writers(fields.any("writers"));
  Shardings shardings(fields, manifest.writers);
  for (const JsonValue& value : fields.list("tensors")) {
    const std::int64_t number = std::ssize(manifest.tensors);
    TensorEntry tensor = tensor_of(value, number);
    const JsonFields tensor_fields(value, {.what = "tensor", .name = tensor.name});
    if (value.HasMember("pieces")) {
      tensor.listed = listed_pieces_of(tensor_fields, tensor);
    } else {
      shardings.set(tensor, tensor_fields);
    }
    check_tensor(tensor, number, manifest.writers.num_writers());
    manifest.tensors.push_back(std::move(tensor));
  }
  manifest.files = files_of(fields, manifest.writers);
  if (document.root().HasMember("index")) read_index(fields, manifest);
  check_names(manifest.tensors, manifest.files);
}

Manifest parse(std::string_view bytes) {
  check_checksum(bytes);
  const JsonDocument document(bytes, kMaxNesting);
  const JsonFields fields(document.root(), {.what = "the whole"});
  if (fields.text("format") != kFormatName) {
    fields.fail(fmt::format("\"format\" is {}, needed is \"{}\"", shown(fields.text("format")),
                            kFormatName));
  }
  const JsonValue& version = fields.any("version");
  if (!version.IsNumber() || version.IsDouble()) fields.fail("\"version\" is not an integer");
  if (!version.IsInt() || version.GetInt() != kFormatVersion) {
    throw Error(ErrorCode::unsupported,
                fmt::format("found format version {}, needed is {}", document.raw_member("version"),
                            kFormatVersion));
  }
  Manifest manifest;
  manifest.minor = fields.integer_or("minor", 0);
  fields.hash128("id");
  manifest.id = fields.text("id");
  manifest.step = fields.integer_or("step", kNoStep);
  fields.any("user");
  manifest.user_json = document.raw_member("user");
  if (document.root().HasMember("objects")) manifest.objects_json = document.raw_member("objects");
  read_lists(fields, document, manifest);
  return manifest;
}

}  // namespace

Manifest parse_manifest(std::string_view bytes, const std::string& path) {
  try {
    return parse(bytes);
  } catch (const Error& e) {
    throw Error(e, fmt::format("read manifest {}: {}", path, e.what()));
  }
}

}  // namespace shardwise::detail
