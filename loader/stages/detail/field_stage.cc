#include "shardwise/loader/stages/detail/field_stage.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "shardwise/loader/detail/read_frame.h"

namespace shardwise::detail {
namespace {

constexpr std::size_t kScratchAlignment = 64;

std::size_t aligned(std::size_t bytes) {
  return (bytes + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
}

}  // namespace

FieldStage::FieldStage(std::shared_ptr<const Source> source, std::string_view stage,
                       std::string_view field_name)
    : OneSourceStage(std::move(source), stage),
      field_(inner().field_index(field_name)),
      fields_(inner().fields().begin(), inner().fields().end()) {}

std::int64_t FieldStage::length(const Sample& sample, std::size_t of) const {
  if (of != field_) return inner().length(sample, of);
  return changed().ragged ? changed_length(sample) : most_length(changed());
}

Facts FieldStage::facts(std::string_view stage) const {
  Facts facts(stage);
  facts.add(inner().fingerprint()).add(std::uint64_t{field_}).add(changed());
  return facts;
}

std::string FieldStage::described(std::string_view stage, std::string_view parameters,
                                  std::int64_t samples) const {
  return fmt::format("{}({}, {}, {})", stage, described_name(original().name), parameters,
                     inner().describe(samples));
}

void FieldStage::read(const Sample& sample, std::span<const FieldBox> boxes) const {
  if (std::ranges::none_of(boxes, [this](const FieldBox& box) { return box.field == field_; })) {
    inner().read(sample, boxes);
    return;
  }
  const std::size_t input_bytes = size_bytes(original().dtype);
  const State of_sample = state(sample);
  ReadFrame frame;
  std::vector<FieldBox>& reads =
      frame.lists().boxes;  // those in scratch memory get their data pointers below
  std::vector<FieldBox>& wanted = frame.lists().others;
  reads.reserve(boxes.size());
  std::size_t scratch_bytes = 0;
  const auto in_place = [&](const FieldBox& from, const FieldBox& to) {
    return to.field != field_ ||
           (original().dtype == changed().dtype && from.to.box.shape() == to.to.box.shape());
  };
  for (const FieldBox& box : boxes) {
    reads.push_back(box);
    if (box.field != field_) continue;
    reads.back().to.box = needed(of_sample, box.to.box);
    if (!in_place(reads.back(), box)) {
      scratch_bytes += aligned(num_bytes(reads.back().to.box.shape(), input_bytes));
    }
  }
  std::byte* next = frame.lists().memory.take(scratch_bytes);
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    if (in_place(reads[i], boxes[i])) continue;
    reads[i].to.data = next;
    next += aligned(num_bytes(reads[i].to.box.shape(), input_bytes));
  }
  wanted.reserve(reads.size());
  for (const FieldBox& box : reads) {
    if (box.field != field_ || !box.to.box.empty()) wanted.push_back(box);
  }
  if (!wanted.empty()) inner().read(sample, wanted);
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    if (boxes[i].field != field_ || boxes[i].to.box.empty()) continue;
    finish(of_sample, {reads[i].to.data, reads[i].to.box}, boxes[i].to);
  }
}

void zero_rows_from(std::int64_t length, std::size_t element_bytes, const BoxView& output) {
  if (output.box.rank() == 0 || output.box.empty() || length >= output.box.end(0)) return;
  const std::int64_t kept = std::max<std::int64_t>(length - output.box.begin(0), 0);
  const std::size_t bytes = num_bytes(output.box.shape(), element_bytes);
  const std::size_t kept_bytes = bytes / as_size(output.box.extent(0)) * as_size(kept);
  std::memset(output.data + kept_bytes, 0, bytes - kept_bytes);
}

}  // namespace shardwise::detail
