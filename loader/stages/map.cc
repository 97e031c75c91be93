#include "shardwise/loader/stages/map.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "shardwise/loader/detail/read_frame.h"
#include "shardwise/loader/stages/detail/stage.h"
#include "shardwise/loader/stages/detail/whole_fields.h"
#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

[[noreturn]] void refuse_map(const std::string& found) {
  throw Error(ErrorCode::invalid_argument, "map: " + found);
}

std::vector<std::size_t> indices_of_fields(const Source& source,
                                           std::span<const std::string> names) {
  std::vector<std::size_t> indices;
  indices.reserve(names.size());
  for (const std::string& field : names) indices.push_back(source.field_index(field));
  return indices;
}

std::vector<std::size_t> numbers_below(std::size_t count) {
  std::vector<std::size_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), std::size_t{0});
  return numbers;
}

class MapStage final : public detail::OneSourceStage {
 public:
  MapStage(std::shared_ptr<const Source> source, std::vector<Field> fields, MapFunction function,
           const MapOptions& options)
      : OneSourceStage(std::move(source), "map"),
        name_(options.name),
        stream_(stage_number("map " + options.name)),
        function_(std::move(function)),
        kept_(indices_of_fields(inner(), options.keep)),
        inputs_(inner().fields(), options.inputs.empty()
                                      ? numbers_below(inner().fields().size())
                                      : indices_of_fields(inner(), options.inputs)),
        outputs_(fields, numbers_below(fields.size())),
        fields_(std::move(fields)) {
    std::vector<Field> kept;
    kept.reserve(kept_.size());
    for (const std::size_t field : kept_) kept.push_back(inner().fields()[field]);
    fields_.insert(fields_.begin(), kept.begin(), kept.end());
    check();
  }

  std::span<const Field> fields() const override { return fields_; }
  void read(const Sample& sample, std::span<const FieldBox> boxes) const override;
  std::int64_t length(const Sample& sample, std::size_t field) const override;

  std::string describe(std::int64_t samples) const override;
  std::uint64_t fingerprint() const override {
    detail::Facts facts("map");
    facts.add(inner().fingerprint()).add(name_);
    for (const std::size_t field : kept_) facts.add(std::uint64_t{field});
    for (const std::size_t field : inputs_.which()) facts.add(std::uint64_t{field});
    for (const Field& field : fields_) facts.add(field);
    return facts.hash();
  }

 private:
  void check() const;
  /// The new fields of a sample.
  struct Made {
    std::span<FieldBuffer> fields;
    std::byte* memory;  ///< of outputs_
  };
  Made make(const Sample& sample, detail::ReadFrame::Lists& lists) const;
  void call(const Sample& sample, std::span<const FieldValue> inputs,
            std::span<FieldBuffer> outputs) const;

  std::string name_;
  std::uint64_t stream_;
  MapFunction function_;
  std::vector<std::size_t> kept_;  // of the source
  detail::WholeFields inputs_, outputs_;
  std::vector<Field> fields_;  // the kept ones, then the new ones
};

void MapStage::check() const {
  if (!function_) refuse_map("the function is null");
  if (name_.empty()) refuse_map("the name is empty, needed is one for fingerprints");
  if (outputs_.which().empty()) refuse_map(fmt::format("\"{}\" has no new field", name_));
  for (std::size_t i = 0; i < fields_.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (fields_[i].name != fields_[j].name) continue;
      refuse_map(fmt::format("\"{}\" has the field \"{}\" twice, needed are distinct names", name_,
                             fields_[i].name));
    }
    if (fields_[i].ragged && fields_[i].shape.empty()) {
      refuse_map(
          fmt::format("\"{}\" has the ragged field \"{}\" without a dim", name_, fields_[i].name));
    }
  }
}

std::string MapStage::describe(std::int64_t samples) const {
  std::string text = fmt::format("map({:?}, of", name_);
  const std::span<const Field> fields = inner().fields();
  for (const std::size_t field : inputs_.which()) {
    text += " " + detail::described_name(fields[field].name);
  }
  if (!kept_.empty()) text += ", keeps";
  for (const std::size_t field : kept_) text += " " + detail::described_name(fields[field].name);
  return text + ", " + inner().describe(samples) + ")";
}

// Makes the new fields with one read of the source, together with the boxes already in the list.
MapStage::Made MapStage::make(const Sample& sample, detail::ReadFrame::Lists& lists) const {
  std::byte* const input_memory = lists.memory.take(inputs_.total_bytes() + outputs_.total_bytes());
  std::byte* const output_memory = input_memory + inputs_.total_bytes();
  inputs_.add_reads(input_memory, lists.boxes);
  inner().read(sample, lists.boxes);
  for (std::size_t i = 0; i < inputs_.which().size(); ++i) {
    const std::size_t field = inputs_.which()[i];
    lists.values.push_back({&inner().fields()[field], inputs_.place(input_memory, i),
                            detail::checked_length(inner(), sample, field)});
  }
  for (std::size_t i = 0; i < outputs_.which().size(); ++i) {
    const Field& field = fields_[kept_.size() + i];
    lists.buffers.push_back({&field, outputs_.place(output_memory, i), detail::most_length(field)});
  }
  call(sample, lists.values, lists.buffers);
  return {lists.buffers, output_memory};
}

void MapStage::call(const Sample& sample, std::span<const FieldValue> inputs,
                    std::span<FieldBuffer> outputs) const {
  SampleRandom random(sample, stream_);
  function_(sample, random, inputs, outputs);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const FieldBuffer& output = outputs[i];
    const Field& field = fields_[kept_.size() + i];
    if (!field.ragged) continue;
    const std::int64_t most = field.shape[0];
    if (output.length < 0 || output.length > most) {
      throw Error(
          ErrorCode::corrupt,
          fmt::format("map \"{}\": record {}: length of field \"{}\" is {}, needed is 0 to {}",
                      name_, sample.record, field.name, output.length, most));
    }
    if (most == 0) continue;
    const std::span<std::byte> place = output.data;
    const std::size_t used = place.size() / as_size(most) * as_size(output.length);
    std::memset(place.data() + used, 0, place.size() - used);
  }
}

void MapStage::read(const Sample& sample, std::span<const FieldBox> boxes) const {
  detail::ReadFrame frame;
  std::vector<FieldBox>& reads = frame.lists().boxes;
  for (const FieldBox& box : boxes) {
    if (box.field < kept_.size()) reads.push_back({kept_[box.field], box.to});
  }
  if (reads.size() == boxes.size()) {
    inner().read(sample, reads);
    return;
  }
  const Made made = make(sample, frame.lists());
  for (const FieldBox& box : boxes) {
    if (box.field < kept_.size()) continue;
    const std::size_t output = box.field - kept_.size();
    copy_box(box.to.box, size_bytes(fields_[box.field].dtype),
             {outputs_.place(made.memory, output).data(), outputs_.box(output)}, box.to);
  }
}

std::int64_t MapStage::length(const Sample& sample, std::size_t field) const {
  if (field < kept_.size()) return inner().length(sample, kept_[field]);
  if (!fields_[field].ragged) return detail::most_length(fields_[field]);
  detail::ReadFrame frame;
  return make(sample, frame.lists()).fields[field - kept_.size()].length;
}

}  // namespace

std::shared_ptr<const Source> map(std::shared_ptr<const Source> source, std::vector<Field> fields,
                                  MapFunction function, const MapOptions& options) {
  return std::make_shared<MapStage>(std::move(source), std::move(fields), std::move(function),
                                    options);
}

}  // namespace shardwise
