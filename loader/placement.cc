#include "shardwise/loader/placement.h"

#include <fmt/format.h>

#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

FieldPlacement place_field(const Field& field, const Mesh& mesh, std::string_view text) {
  const auto fail = [&](ErrorCode code, const std::string& found) {
    throw Error(code, fmt::format("place field \"{}\" of record shape {} by \"{}\": {}", field.name,
                                  to_string(field.shape), text, found));
  };
  try {
    Sharding sharding(mesh, PartitionSpec::parse(text));
    const std::size_t rank = field.shape.size() + 1;
    if (sharding.rank() != rank) {
      fail(ErrorCode::invalid_argument,
           fmt::format("it has rank {}, needed is rank {}: the batch and the record's dims",
                       sharding.rank(), rank));
    }
    return {field.name, std::move(sharding)};
  } catch (const Error& e) {
    if (std::string_view(e.what()).starts_with("place field")) throw;
    fail(e.code(), e.what());
    throw;
  }
}

}  // namespace

std::vector<FieldPlacement> place_all(const Source& source, const Mesh& mesh,
                                      std::string_view spec) {
  std::vector<FieldPlacement> placements;
  placements.reserve(source.fields().size());
  for (const Field& field : source.fields()) placements.push_back(place_field(field, mesh, spec));
  return placements;
}

std::vector<FieldPlacement> place_fields(
    const Source& source, const Mesh& mesh,
    const std::map<std::string, std::string, std::less<>>& specs) {
  for (const auto& [field, spec] : specs) source.field_index(field);
  std::vector<FieldPlacement> placements;
  placements.reserve(specs.size());
  for (const Field& field : source.fields()) {
    const auto spec = specs.find(field.name);
    if (spec != specs.end()) placements.push_back(place_field(field, mesh, spec->second));
  }
  return placements;
}

std::vector<FieldPlacement> cut_batch(const Source& source, const Mesh& mesh,
                                      std::string_view axes) {
  std::vector<FieldPlacement> placements;
  placements.reserve(source.fields().size());
  for (const Field& field : source.fields()) {
    std::string spec(axes);
    for (std::size_t dim = 0; dim < field.shape.size(); ++dim) spec += ",-";
    placements.push_back(place_field(field, mesh, spec));
  }
  return placements;
}

}  // namespace shardwise
