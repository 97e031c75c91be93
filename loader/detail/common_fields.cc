#include "shardwise/loader/detail/common_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "shardwise/loader/detail/read_frame.h"
#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

std::string shown_fields(std::span<const Field> fields) {
  std::string all;
  for (const Field& field : fields) {
    all += fmt::format("{}\"{}\" {} {}{}", all.empty() ? "" : ", ", field.name, name(field.dtype),
                       to_string(field.shape), field.ragged ? " ragged" : "");
  }
  return all;
}

bool can_differ(const Field& field) { return field.ragged && !field.shape.empty(); }

bool go_together(Field a, const Field& b) {
  if (can_differ(a) && can_differ(b)) a.shape[0] = b.shape[0];
  return a == b;
}

}  // namespace

std::vector<Field> common_fields(std::span<const std::shared_ptr<const Source>> sources,
                                 std::string_view stage) {
  std::vector<Field> all;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    if (!sources[i]) {
      throw Error(ErrorCode::invalid_argument, fmt::format("{}: source {} is null", stage, i));
    }
    const std::span<const Field> own = sources[i]->fields();
    if (i == 0) all.assign(own.begin(), own.end());
    if (!std::equal(all.begin(), all.end(), own.begin(), own.end(), go_together)) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{}: source {} has {}, needed is {} as source 0 has", stage, i,
                              shown_fields(own), shown_fields(sources[0]->fields())));
    }
    for (std::size_t field = 0; field < all.size(); ++field) {
      if (!can_differ(all[field])) continue;
      all[field].shape[0] = std::max(all[field].shape[0], own[field].shape[0]);
    }
  }
  return all;
}

void read_common(const Source& source, const Sample& sample, std::span<const FieldBox> boxes) {
  const std::span<const Field> fields = source.fields();
  const auto is_inside = [&](const FieldBox& box) {
    const Field& field = fields[box.field];
    return !can_differ(field) || box.to.box.end(0) <= field.shape[0];
  };
  if (std::all_of(boxes.begin(), boxes.end(), is_inside)) {
    source.read(sample, boxes);
    return;
  }
  ReadFrame frame;
  std::vector<FieldBox>& parts = frame.lists().boxes;
  parts.assign(boxes.begin(), boxes.end());
  for (FieldBox& part : parts) {
    if (is_inside(part)) continue;
    const Field& field = fields[part.field];
    // Rows of dim 0 follow one another: the source's own first, then zeros.
    Box& box = part.to.box;
    const std::size_t element_bytes = size_bytes(field.dtype);
    const std::size_t bytes = num_bytes(box.shape(), element_bytes);
    box.set(0, std::min(box.begin(0), field.shape[0]), field.shape[0]);
    const std::size_t there = num_bytes(box.shape(), element_bytes);
    if (bytes > there) std::memset(part.to.data + there, 0, bytes - there);
  }
  source.read(sample, parts);
}

}  // namespace shardwise::detail
