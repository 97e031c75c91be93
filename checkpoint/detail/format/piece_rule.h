#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shardwise/shard/box.h"
#include "shardwise/shard/sharding.h"

namespace shardwise::detail {

/// Smaller tensors that one writer saves are one piece, whatever their sharding; smaller pieces are
/// stored unfiltered, as their compression gains little.
inline constexpr std::size_t kContiguousBelowBytes = std::size_t{64} << 10;

/// Replicas share a box in parts of about as many bytes, or more.
inline constexpr std::size_t kPartBytes = std::size_t{1} << 20;

/// A file's name has five digits for its writer.
inline constexpr std::int64_t kMostWriters = 99'999;

/// The limit for all processes of a job; products with kMostWriters do not overflow.
inline constexpr std::int64_t kMostDevices = std::int64_t{1} << 40;

/// True if two shardings give each writer the same pieces. Equal ones place the same, but may
/// number the devices differently, and replicas are divided by that number.
bool same_pieces(const Sharding& a, const Sharding& b);

/// Assigns the data of each device to one of a checkpoint's writers: writer w has the devices
/// [starts[w], starts[w + 1]). Writers are numbered through all processes of a job, and each writes
/// one shard file. Immutable.
class WriterMap {
 public:
  /// One writer, which has all devices there can be.
  WriterMap() : WriterMap({0, std::numeric_limits<std::int64_t>::max()}) {}

  /// Requires two numbers or more, ascending from 0 on, the last one above 0.
  explicit WriterMap(std::vector<std::int64_t> starts) : starts_(std::move(starts)) {}

  /// Device d has the writer d * writers / devices. Requires both > 0.
  static WriterMap even(std::int64_t devices, std::int64_t writers);

  std::int64_t num_writers() const { return static_cast<std::int64_t>(starts_.size()) - 1; }
  std::int64_t num_devices() const { return starts_.back(); }
  const std::vector<std::int64_t>& starts() const { return starts_; }

  /// Its first device and the one after its last. Requires 0 <= writer < num_writers().
  std::pair<std::int64_t, std::int64_t> devices(std::int64_t writer) const;

  /// Requires 0 <= device < num_devices(). O(log writers).
  std::int64_t writer_of(DeviceId device) const;

  bool operator==(const WriterMap&) const = default;

 private:
  std::vector<std::int64_t> starts_;
};

/// Why a process cannot write for a WriterMap of these numbers; empty if it can. One clause.
std::string starts_problem(std::span<const std::int64_t> starts);

/// The highest device of a mesh. Requires one that is not abstract.
DeviceId last_device(const Mesh& mesh);

/// A box that one writer stores.
struct WriterPiece {
  std::int64_t writer;
  Box box;

  bool operator==(const WriterPiece&) const = default;
};

/// Which boxes of a tensor each writer stores. It follows from the sharding and the writers alone:
/// every process finds its own boxes, and every reader those that it needs, without a list.
///
/// The rule. Each tile that the sharding cuts is held by R replicas. It is divided along one dim
/// into K = min(R, max(1, bytes / kPartBytes)) parts, as even as the dim allows: the outermost dim
/// with 16 rows for each part, or else the longest one. Part j belongs to the replica
/// (s + floor(j R / K)) mod R, where s is a hash of the tensor's name mod R if K < R, else 0, so
/// that small tensors spread over the replicas. Neighbouring parts of one writer are one piece. A
/// writer's pieces come in the order of its devices, or of mesh positions if it has more devices
/// than the mesh. With one writer, a tensor below kContiguousBelowBytes is one piece.
///
/// Immutable. The maps and shardings must outlive it.
class PieceRule {
 public:
  /// Requires a sharding of the shape's rank that allows the shape, and a mesh with devices.
  PieceRule(const WriterMap& writers, const Sharding& sharding, const Shape& shape,
            std::size_t element_bytes, std::string_view name);

  /// The boxes that a writer stores; appended. O(rank) for each of its devices, or of the mesh's
  /// if these are fewer.
  void add_pieces_of(std::int64_t writer, std::vector<Box>& boxes) const;

  /// The pieces that share elements with a box, which must be inside the tensor; appended. Takes
  /// time for its result only.
  void add_pieces_in(const Box& box, std::vector<WriterPiece>& pieces) const;

 private:
  struct Tile {
    Index number;
    Box box;
    std::size_t dim;     // that is divided
    std::int64_t parts;  // K
  };

  void add_pieces_at(std::int64_t position, std::int64_t writer, std::vector<Box>& boxes) const;
  Tile tile(const Index& number) const;
  std::int64_t writer_of(const Tile& tile, std::int64_t part) const;
  Box run(const Tile& tile, std::int64_t first, std::int64_t end) const;
  bool is_whole() const { return writers_.num_writers() == 1 && bytes_ < kContiguousBelowBytes; }

  const WriterMap& writers_;
  const Sharding& sharding_;
  const Shape& shape_;
  std::size_t element_bytes_, bytes_;
  std::int64_t replicas_, shift_;
};

}  // namespace shardwise::detail
