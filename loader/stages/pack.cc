#include "shardwise/loader/stages/pack.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "shardwise/loader/detail/read_frame.h"
#include "shardwise/loader/stages/detail/best_fit.h"
#include "shardwise/loader/stages/detail/parallel_chunks.h"
#include "shardwise/loader/stages/detail/plan_cache.h"
#include "shardwise/loader/stages/detail/stage.h"
#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

using detail::PackPiece;
using detail::PackPlan;
using detail::PlanCache;

constexpr std::int64_t kMostTokens = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMostWindowDocuments = 65536;
constexpr std::size_t kMostPlanBytes = std::size_t{32} << 20;

enum PackField : std::size_t { kPackTokens, kPackSegments, kPackPositions };

class PackStage final : public detail::OneSourceStage {
 public:
  PackStage(std::shared_ptr<const Source> source, PackOptions options);

  std::int64_t size() const override { return packs_before_.back(); }
  std::span<const Field> fields() const override { return fields_; }
  void read(const Sample& sample, std::span<const FieldBox> boxes) const override;
  std::int64_t length(const Sample&, std::size_t) const override { return options_.window; }
  void will_read(const Sample& sample) const override;
  bool changes_with_epoch() const override { return false; }  // always that of epoch 0
  std::string describe(std::int64_t samples) const override;

  std::uint64_t fingerprint() const override {
    return detail::Facts("pack")
        .add(inner().fingerprint())
        .add(std::uint64_t{field_})
        .add(options_.window)
        .add(options_.documents)
        .add(std::uint64_t{options_.eos.has_value()})
        .add(options_.eos.value_or(0))
        .add(std::span<const std::int64_t>(packs_before_))
        .hash();
  }

 private:
  /// The place of a record: its window of documents, and its number among the packs of that window.
  struct Place {
    std::int64_t window, pack;
  };
  Place place_of(std::int64_t record) const {
    const auto found = std::upper_bound(packs_before_.begin(), packs_before_.end(), record) - 1;
    return {found - packs_before_.begin(), record - *found};
  }
  static Sample document_sample(std::int64_t document) { return {document, 0, 0}; }
  void check() const;
  void write_eos(const Field& tokens);
  void count_packs();
  PackPlan make_plan(std::int64_t window) const;
  PlanCache::Plan plan_of(std::int64_t window) const;
  void read_tokens(const PackPiece& piece, std::int64_t start, const FieldBox& box,
                   std::vector<FieldBox>& reads) const;

  PackOptions options_;
  std::size_t field_;  // of the source
  std::vector<Field> fields_;
  std::array<std::byte, 8> eos_{};
  std::vector<std::int64_t> packs_before_;  // per window of documents; at the end, the total
  mutable PlanCache plans_{kMostPlanBytes};
};

[[noreturn]] void refuse_pack(const std::string& found,
                              ErrorCode code = ErrorCode::invalid_argument) {
  throw Error(code, "pack: " + found);
}

PackStage::PackStage(std::shared_ptr<const Source> source, PackOptions options)
    : OneSourceStage(std::move(source), "pack"),
      options_(std::move(options)),
      field_(inner().field_index(options_.field)) {
  check();
  const Field& tokens = inner().fields()[field_];
  if (options_.eos) write_eos(tokens);
  fields_ = {{tokens.name, tokens.dtype, {options_.window}},
             {tokens.name + "_segments", DType::i32, {options_.window}},
             {tokens.name + "_positions", DType::i32, {options_.window}}};
  count_packs();
  if (size() == 0) {
    refuse_pack(fmt::format("field \"{}\" has no token in {} documents, needed is one or more",
                            tokens.name, inner().size()));
  }
}

void PackStage::check() const {
  const Field& tokens = inner().fields()[field_];
  if (tokens.shape.size() != 1 || tokens.shape[0] >= kMostTokens) {
    refuse_pack(fmt::format("field \"{}\" has shape {}, needed is one dim of fewer than {}",
                            tokens.name, to_string(tokens.shape), kMostTokens));
  }
  if (options_.window < 1 || options_.window > kMostTokens) {
    refuse_pack(fmt::format("window is {}, needed is 1 to {}", options_.window, kMostTokens));
  }
  if (options_.documents < 1 || options_.documents > kMostWindowDocuments) {
    refuse_pack(fmt::format("documents is {}, needed is 1 to {}", options_.documents,
                            kMostWindowDocuments));
  }
  if (options_.eos && !is_computed(tokens.dtype)) {
    refuse_pack(fmt::format("field \"{}\" is {}, needed is a type that is computed with for an eos",
                            tokens.name, name(tokens.dtype)),
                ErrorCode::unsupported);
  }
}

void PackStage::write_eos(const Field& tokens) {
  convert(DType::i64, reinterpret_cast<const std::byte*>(&*options_.eos), tokens.dtype, eos_.data(),
          1);
  std::int64_t held = 0;
  convert(tokens.dtype, eos_.data(), DType::i64, reinterpret_cast<std::byte*>(&held), 1);
  if (held == *options_.eos) return;
  refuse_pack(fmt::format("eos is {}, needed is a number of field \"{}\", which is {}",
                          *options_.eos, tokens.name, name(tokens.dtype)));
}

void PackStage::count_packs() {
  const std::int64_t documents = inner().size();
  const std::int64_t windows =
      documents / options_.documents + (documents % options_.documents != 0 ? 1 : 0);
  packs_before_.resize(as_size(windows) + 1);
  std::function<void(std::int64_t, std::int64_t)> progress;
  if (options_.progress) {
    progress = [&](std::int64_t done, std::int64_t) {
      options_.progress(done == windows ? documents : done * options_.documents, documents);
    };
  }
  detail::for_each_chunk(windows, 1, options_.threads, progress,
                         [&](std::int64_t window, std::int64_t) {
                           packs_before_[as_size(window) + 1] = make_plan(window).num_packs();
                         });
  for (std::size_t i = 1; i < packs_before_.size(); ++i) packs_before_[i] += packs_before_[i - 1];
}

PackPlan PackStage::make_plan(std::int64_t window) const {
  const std::int64_t begin = window * options_.documents;
  const std::int64_t count = std::min(options_.documents, inner().size() - begin);
  std::vector<std::int64_t> lengths;
  lengths.reserve(as_size(count));
  for (std::int64_t document = begin; document < begin + count; ++document) {
    lengths.push_back(detail::checked_length(inner(), document_sample(document), field_) +
                      (options_.eos ? 1 : 0));
  }
  return PackPlan(begin, lengths, options_.window);
}

// Two threads that want the same plan may both make it, which is better than making one wait.
PlanCache::Plan PackStage::plan_of(std::int64_t window) const {
  if (PlanCache::Plan plan = plans_.find(window)) return plan;
  auto plan = std::make_shared<const PackPlan>(make_plan(window));
  const std::int64_t expected = packs_before_[as_size(window) + 1] - packs_before_[as_size(window)];
  if (plan->num_packs() != expected) {
    throw Error(ErrorCode::corrupt,
                fmt::format("pack: documents from {} on make {} packs, made {} before: their "
                            "lengths have changed",
                            window * options_.documents, plan->num_packs(), expected));
  }
  plans_.add(window, plan);
  return plan;
}

// The part of a piece that is in a box; the piece begins at `start` of the pack.
struct PieceRange {
  std::int64_t begin, end;  // of the pack
  bool empty() const { return begin >= end; }
};

PieceRange range_in(const PackPiece& piece, std::int64_t start, const Box& box) {
  return {std::max(start, box.begin(0)), std::min(start + piece.length, box.end(0))};
}

void PackStage::read_tokens(const PackPiece& piece, std::int64_t start, const FieldBox& box,
                            std::vector<FieldBox>& reads) const {
  const PieceRange range = range_in(piece, start, box.to.box);
  if (range.empty()) return;
  const std::size_t bytes = size_bytes(fields_[kPackTokens].dtype);
  std::int64_t begin = piece.begin + range.begin - start, end = piece.begin + range.end - start;
  std::byte* const to = box.to.data + as_size(range.begin - box.to.box.begin(0)) * bytes;
  if (options_.eos) {
    const std::int64_t tokens =
        detail::checked_length(inner(), document_sample(piece.document), field_);
    if (end > tokens) {
      end = tokens;
      std::memcpy(to + as_size(end - begin) * bytes, eos_.data(), bytes);
    }
  }
  if (begin < end) reads.push_back({field_, {to, Box({begin}, {end})}});
}

void set_numbers(const FieldBox& box, std::int64_t begin, std::int64_t end, std::int64_t first,
                 std::int64_t step) {
  std::byte* to = box.to.data + as_size(begin - box.to.box.begin(0)) * sizeof(std::int32_t);
  for (std::int64_t at = begin; at < end; ++at, first += step, to += sizeof(std::int32_t)) {
    const std::int32_t number = static_cast<std::int32_t>(first);
    std::memcpy(to, &number, sizeof(number));
  }
}

// Describes all of the source's epoch 0, since all of it is read to make the packs.
std::string PackStage::describe(std::int64_t) const {
  return fmt::format("pack({}, window {}, documents {}, {}{})",
                     detail::described_name(inner().fields()[field_].name), options_.window,
                     options_.documents,
                     options_.eos ? fmt::format("eos {}, ", *options_.eos) : std::string(),
                     inner().describe(inner().size()));
}

// Acts only if the plan is in the cache.
void PackStage::will_read(const Sample& sample) const {
  const Place place = place_of(sample.record);
  const PlanCache::Plan plan = plans_.find(place.window);
  if (!plan) return;
  for (const PackPiece& piece : plan->pack(place.pack)) {
    inner().will_read(document_sample(piece.document));
  }
}

void PackStage::read(const Sample& sample, std::span<const FieldBox> boxes) const {
  const Place place = place_of(sample.record);
  const PlanCache::Plan plan = plan_of(place.window);
  std::int64_t start = 0;
  detail::ReadFrame frame;
  std::vector<FieldBox>& reads = frame.lists().boxes;
  std::int64_t segment = 0;
  for (const PackPiece& piece : plan->pack(place.pack)) {
    ++segment;
    reads.clear();
    for (const FieldBox& box : boxes) {
      if (box.field == kPackTokens) {
        read_tokens(piece, start, box, reads);
        continue;
      }
      const PieceRange range = range_in(piece, start, box.to.box);
      if (range.empty()) continue;
      const bool is_segment = box.field == kPackSegments;
      set_numbers(box, range.begin, range.end,
                  is_segment ? segment : piece.begin + range.begin - start, is_segment ? 0 : 1);
    }
    if (!reads.empty()) inner().read(document_sample(piece.document), reads);
    start += piece.length;
  }
  for (const FieldBox& box : boxes) {
    const std::int64_t begin = std::max(start, box.to.box.begin(0)), end = box.to.box.end(0);
    if (begin >= end) continue;
    const std::size_t bytes = size_bytes(fields_[box.field].dtype);
    std::memset(box.to.data + as_size(begin - box.to.box.begin(0)) * bytes, 0,
                as_size(end - begin) * bytes);
  }
}

}  // namespace

std::shared_ptr<const Source> pack(std::shared_ptr<const Source> source, PackOptions options) {
  return std::make_shared<PackStage>(std::move(source), std::move(options));
}

}  // namespace shardwise
