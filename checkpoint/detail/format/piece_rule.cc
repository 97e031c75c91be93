#include "shardwise/checkpoint/detail/format/piece_rule.h"

#include <fmt/format.h>

#include <algorithm>

#include "shardwise/storage/hash.h"

namespace shardwise::detail {
namespace {

// A dim that is divided is to have this number of rows for each part, so that they can be even.
constexpr std::int64_t kRowsPerPart = 16;

// The outermost dim that is long enough, or else the longest one; 0 if the box has no dims.
std::size_t dim_to_divide(const Box& box, std::int64_t parts) {
  std::size_t longest = 0;
  for (std::size_t dim = 0; dim < box.rank(); ++dim) {
    if (box.extent(dim) / kRowsPerPart >= parts) return dim;
    if (box.extent(dim) > box.extent(longest)) longest = dim;
  }
  return longest;
}

// floor(a b / c), also if a b passes 2^63.
std::int64_t multiply_divide(std::int64_t a, std::int64_t b, std::int64_t c) {
  __extension__ using Wide = __int128;
  return static_cast<std::int64_t>(static_cast<Wide>(a) * b / c);
}

}  // namespace

bool same_pieces(const Sharding& a, const Sharding& b) {
  return a == b && a.mesh().devices() == b.mesh().devices();
}

WriterMap WriterMap::even(std::int64_t devices, std::int64_t writers) {
  std::vector<std::int64_t> starts;
  starts.reserve(static_cast<std::size_t>(writers) + 1);
  __extension__ using Wide = __int128;  // a product may pass 2^63
  for (std::int64_t w = 0; w <= writers; ++w) {
    // the first d with d * writers / devices >= w
    starts.push_back(
        static_cast<std::int64_t>((static_cast<Wide>(w) * devices + writers - 1) / writers));
  }
  return WriterMap(std::move(starts));
}

std::string starts_problem(std::span<const std::int64_t> starts) {
  if (starts.size() < 2 || std::ssize(starts) > kMostWriters + 1) {
    return fmt::format("found {} starts of writers, needed 2 to {}", starts.size(),
                       kMostWriters + 1);
  }
  if (starts.front() != 0 || starts.back() < 1 || !std::ranges::is_sorted(starts)) {
    return "found starts of writers that are not integers that ascend from 0 on";
  }
  if (starts.size() > 2 && starts.back() > kMostDevices) {
    return fmt::format("found starts of writers for {} devices, needed at most {}", starts.back(),
                       kMostDevices);
  }
  return {};
}

std::pair<std::int64_t, std::int64_t> WriterMap::devices(std::int64_t writer) const {
  const auto w = static_cast<std::size_t>(writer);
  return {starts_[w], starts_[w + 1]};
}

std::int64_t WriterMap::writer_of(DeviceId device) const {
  const auto after = std::upper_bound(starts_.begin(), starts_.end() - 1, device);
  return after - starts_.begin() - 1;
}

DeviceId last_device(const Mesh& mesh) {
  if (mesh.devices().is_iota()) return mesh.size() - 1;
  DeviceId last = 0;
  for (std::int64_t p = 0; p < mesh.size(); ++p) last = std::max(last, mesh.device_at(p));
  return last;
}

PieceRule::PieceRule(const WriterMap& writers, const Sharding& sharding, const Shape& shape,
                     std::size_t element_bytes, std::string_view name)
    : writers_(writers),
      sharding_(sharding),
      shape_(shape),
      element_bytes_(element_bytes),
      bytes_(num_bytes(shape, element_bytes)),
      replicas_(sharding.num_replicas()),
      shift_(static_cast<std::int64_t>(hash64(name) % static_cast<std::uint64_t>(replicas_))) {}

PieceRule::Tile PieceRule::tile(const Index& number) const {
  Tile tile{.number = number, .box = {}, .dim = 0, .parts = 1};
  for (std::size_t d = 0; d < shape_.size(); ++d) {
    const TileRange range = sharding_.tile_range(d, tile.number[d], shape_[d]);
    tile.box.push_back(range.begin, range.end);
  }
  const std::size_t bytes = static_cast<std::size_t>(tile.box.num_elements()) * element_bytes_;
  if (shape_.empty()) return tile;  // a scalar has no dim to divide
  tile.parts =
      std::clamp(static_cast<std::int64_t>(bytes / kPartBytes), std::int64_t{1}, replicas_);
  tile.dim = dim_to_divide(tile.box, tile.parts);
  return tile;
}

std::int64_t PieceRule::writer_of(const Tile& tile, std::int64_t part) const {
  std::int64_t replica = multiply_divide(part, replicas_, tile.parts);
  if (tile.parts < replicas_) replica = (replica + shift_) % replicas_;
  return writers_.writer_of(
      sharding_.mesh().device_at(sharding_.position_of(tile.number, replica)));
}

// The parts [first, end) of a tile; empty if the dim has too few rows for them.
Box PieceRule::run(const Tile& tile, std::int64_t first, std::int64_t end) const {
  if (first == 0 && end == tile.parts) return tile.box;
  const std::int64_t begin = tile.box.begin(tile.dim), extent = tile.box.extent(tile.dim);
  Index low = tile.box.begin(), high = tile.box.end();
  low[tile.dim] = begin + multiply_divide(first, extent, tile.parts);
  high[tile.dim] = begin + multiply_divide(end, extent, tile.parts);
  return Box(low, high);
}

void PieceRule::add_pieces_of(std::int64_t writer, std::vector<Box>& boxes) const {
  if (bytes_ == 0) return;
  if (is_whole()) {
    boxes.push_back(Box::whole(shape_));
    return;
  }
  const Mesh& mesh = sharding_.mesh();
  const auto [first, end] = writers_.devices(writer);
  if (end - first <= mesh.size()) {
    for (DeviceId device = first; device < end; ++device) {
      if (const auto position = mesh.position_of(device)) add_pieces_at(*position, writer, boxes);
    }
    return;
  }
  for (std::int64_t position = 0; position < mesh.size(); ++position) {
    const DeviceId device = mesh.device_at(position);
    if (device >= first && device < end) add_pieces_at(position, writer, boxes);
  }
}

// The run of parts that begins with the one of this replica, if there is one.
void PieceRule::add_pieces_at(std::int64_t position, std::int64_t writer,
                              std::vector<Box>& boxes) const {
  Index number;
  for (std::size_t d = 0; d < shape_.size(); ++d) {
    number.push_back(sharding_.tile_index(position, d));
  }
  const Tile at = tile(number);
  if (at.box.empty()) return;
  std::int64_t replica = sharding_.replica_id(position);
  if (at.parts < replicas_) replica = (replica + replicas_ - shift_) % replicas_;
  // The smallest part whose replica is this one or a later one.
  std::int64_t part = multiply_divide(replica, at.parts, replicas_);
  if (multiply_divide(part, replicas_, at.parts) < replica) ++part;
  if (part == at.parts || multiply_divide(part, replicas_, at.parts) != replica) return;
  if (part > 0 && writer_of(at, part - 1) == writer) return;
  const std::int64_t first = part;
  while (++part < at.parts && writer_of(at, part) == writer) {
  }
  const Box box = run(at, first, part);
  if (!box.empty()) boxes.push_back(box);
}

void PieceRule::add_pieces_in(const Box& box, std::vector<WriterPiece>& pieces) const {
  if (box.empty()) return;
  if (is_whole()) {
    pieces.push_back({0, Box::whole(shape_)});
    return;
  }
  Box numbers;
  for (std::size_t d = 0; d < shape_.size(); ++d) {
    numbers.push_back(sharding_.tile_of(d, box.begin(d), shape_[d]),
                      sharding_.tile_of(d, box.end(d) - 1, shape_[d]) + 1);
  }
  for_each_index(numbers, [&](const Index& number) {
    const Tile at = tile(number);
    if (at.box.empty()) return;
    for (std::int64_t part = 0; part < at.parts;) {
      const std::int64_t first = part, writer = writer_of(at, first);
      while (++part < at.parts && writer_of(at, part) == writer) {
      }
      const Box piece = run(at, first, part);
      if (!intersect(piece, box).empty()) pieces.push_back({writer, piece});
    }
  });
}

}  // namespace shardwise::detail
