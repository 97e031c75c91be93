#include "shardwise/checkpoint/detail/format/manifest_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <tuple>
#include <unordered_set>
#include <vector>

#include "shardwise/checkpoint/detail/format/json_text.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/plan/transfer_plan.h"
#include "shardwise/storage/utf8.h"

namespace shardwise::detail {
namespace {

[[noreturn]] void refuse(const std::string& message) { throw Error(ErrorCode::corrupt, message); }

[[noreturn]] void refuse_tensor(const TensorEntry& tensor, const std::string& problem) {
  refuse(fmt::format("tensor {:?}: {}", tensor.name, problem));
}

std::string box_problem(const Box& box, const TensorEntry& tensor) {
  if (box.rank() != tensor.shape.size()) {
    return fmt::format("\"box\" has {} dims, the tensor has {}", box.rank(), tensor.shape.size());
  }
  for (std::size_t d = 0; d < box.rank(); ++d) {
    if (box.extent(d) == 0) return fmt::format("box {} is empty", to_string(box));
    if (box.begin(d) < 0 || box.end(d) > tensor.shape[d]) {
      return fmt::format("box {} leaves the tensor's shape {}", to_string(box),
                         to_string(tensor.shape));
    }
  }
  return {};
}

// Boxes in the order of their writers, which cover every element once.
void check_list(const TensorEntry& tensor, std::int64_t writers) {
  std::vector<Box> boxes;
  std::int64_t before = 0;
  for (const auto& [writer, box] : tensor.listed) {
    if (writer < before || writer >= writers) {
      refuse_tensor(tensor, fmt::format("piece {} has writer {}, needed is {} to {}",
                                        to_string(box), writer, before, writers - 1));
    }
    if (const std::string problem = box_problem(box, tensor); !problem.empty()) {
      refuse_tensor(tensor, problem);
    }
    before = writer;
    boxes.push_back(box);
  }
  check_cover(boxes, tensor.shape);
}

}  // namespace

std::string mesh_problem(const Mesh& mesh) {
  if (mesh.is_abstract()) return "it has no devices";
  if (mesh.size() > kMostListedPositions) {
    return fmt::format("it has {} devices, needed is at most {}", mesh.size(),
                       kMostListedPositions);
  }
  for (const Axis& axis : mesh.axes()) {
    if (!is_utf8(axis.name)) return fmt::format("its axis {} is not UTF-8", shown(axis.name));
  }
  return {};
}

std::string mesh_problem(const Mesh& mesh, const WriterMap& writers) {
  if (std::string problem = mesh_problem(mesh); !problem.empty()) return problem;
  if (const DeviceId last = last_device(mesh); last >= writers.num_devices()) {
    return fmt::format("nobody writes what device {} holds: the writers have devices 0 to {}", last,
                       writers.num_devices() - 1);
  }
  return {};
}

std::string piece_problem(const PieceEntry& piece, const TensorEntry& tensor) {
  if (std::string problem = box_problem(piece.box, tensor); !problem.empty()) return problem;
  const Shape extents = piece.box.shape();
  for (std::size_t d = 0; d < extents.size(); ++d) {
    if (piece.chunk[d] < 1) return fmt::format("chunk {} is empty", to_string(piece.chunk));
    if (piece.chunk[d] > extents[d]) {
      return fmt::format("chunk {} is larger than the piece, {}", to_string(piece.chunk),
                         to_string(extents));
    }
  }
  if (piece.layout == Layout::contiguous) {
    if (piece.chunk != extents) {
      return fmt::format("it is contiguous and has the extents {}, but its chunk is {}",
                         to_string(extents), to_string(piece.chunk));
    }
    if (piece.codec != StoredCodec::none) return "it is contiguous, but its codec is zstd";
  }
  const std::size_t bytes = chunk_bytes(piece, tensor.dtype);
  if (bytes > kMaxChunkBytes) {
    return fmt::format("a chunk has {} bytes, needed is at most {}", bytes, kMaxChunkBytes);
  }
  return {};
}

void check_tensor(const TensorEntry& tensor, std::int64_t number, std::int64_t writers) {
  if (const std::string problem = name_problem(tensor.name); !problem.empty()) {
    refuse(fmt::format("tensor {}: its name {}", number, problem));
  }
  try {
    num_bytes(tensor.shape, size_bytes(tensor.dtype));
    if (!tensor.sharding) return check_list(tensor, writers);
    if (tensor.sharding->rank() != tensor.shape.size()) {
      refuse_tensor(tensor, fmt::format("its spec {:?} has {} dims, its shape {}",
                                        tensor.sharding->spec().to_string(),
                                        tensor.sharding->rank(), to_string(tensor.shape)));
    }
    static_cast<void>(tensor.sharding->shard_shape(tensor.shape));
  } catch (const Error& e) {
    if (e.code() == ErrorCode::corrupt) throw;
    refuse_tensor(tensor, e.what());
  }
}

void check_names(std::span<const TensorEntry> tensors, std::span<const FileEntry> files) {
  const TensorEntry* before = nullptr;
  std::unordered_set<std::string_view> names(files.size());
  for (const TensorEntry& tensor : tensors) {
    if (before != nullptr && before->name >= tensor.name) {
      refuse(fmt::format("tensor {:?} follows {:?}: needed are sorted, distinct names", tensor.name,
                         before->name));
    }
    before = &tensor;
  }
  for (const FileEntry& file : files) {
    if (!names.insert(file.name).second) {
      refuse(fmt::format("file {} comes twice", shown(file.name)));
    }
  }
}

std::string file_problem(const FileEntry& file) {
  if (file.name.empty() || file.name == "." || file.name == ".." || file.name == kManifestName ||
      file.name == kIndexName || file.name.find('/') != std::string::npos ||
      file.name.find('\0') != std::string::npos) {
    return fmt::format("{} cannot be the name of a shard file", shown(file.name));
  }
  const std::uint64_t begin = file.data_begin, end = file.data_end, table = file.table_address;
  if (begin > end) return fmt::format("\"data\" begins at {} and ends at {}", begin, end);
  if (end > file.bytes) {
    return fmt::format("\"data\" is [{}, {}), but the file has {} bytes", begin, end, file.bytes);
  }
  if (file.chunks > kMaxChunksPerFile) {
    return fmt::format("its table has {} chunks, needed is at most {}", file.chunks,
                       kMaxChunksPerFile);
  }
  // Divided, not multiplied: nothing overflows.
  if (table < begin || table > end || file.chunks < 0 ||
      static_cast<std::uint64_t>(file.chunks) > (end - table) / sizeof(ChunkRecord)) {
    return fmt::format("the {} records of its table, at {}, are not inside the data, [{}, {})",
                       file.chunks, table, begin, end);
  }
  const std::uint64_t decoded = file.decoded_address;
  if (decoded < end || decoded > file.bytes ||
      static_cast<std::uint64_t>(file.chunks) > (file.bytes - decoded) / sizeof(std::uint64_t)) {
    return fmt::format("its {} decoded hashes, at {}, are not after the data, in [{}, {})",
                       file.chunks, decoded, end, file.bytes);
  }
  return {};
}

void check_files(std::span<const FileEntry> files) {
  for (std::size_t f = 0; f < files.size(); ++f) {
    const std::string problem = file_problem(files[f]);
    if (!problem.empty()) refuse(fmt::format("file {}: {}", f, problem));
  }
}

}  // namespace shardwise::detail
