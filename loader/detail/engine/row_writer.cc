#include "shardwise/loader/detail/engine/row_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "shardwise/loader/detail/engine/delivery_digest.h"
#include "shardwise/loader/detail/engine/stage_clock.h"
#include "shardwise/shard/host/random.h"

namespace shardwise::detail {
namespace {

constexpr int kMostSubstitutes = 16;
constexpr int kMostDraws = 10'000;  // including those that do not fit the batch's buckets

// A record is announced this many rows before it is read.
constexpr std::size_t kRowsAhead = 4;

std::size_t bytes_of(const FieldBox& box, const Source& source) {
  return num_bytes(box.to.box.shape(), size_bytes(source.fields()[box.field].dtype));
}

}  // namespace

RowWriter::RowWriter(const BatchPlan& plan, const RunOrder& order, const LoaderOptions& options,
                     const Renumber& renumber)
    : plan_(plan), order_(order), policy_(options.bad_records), renumber_(renumber) {}

bool RowWriter::write(const PendingBatch& batch, std::int64_t begin, std::int64_t end,
                      const std::stop_token& stop, TicketResult& result) {
  const StageTimer timer("place");
  batch_ = &batch;
  const std::int64_t end_valid = std::clamp(batch.valid_rows, begin, end);
  find_targets(batch, begin, end);
  {
    const StageTimer ordering("order");
    order_.samples(batch.first_number + begin, batch.first_number + end_valid, samples_);
  }
  for (std::int64_t row = begin; row < end_valid;) {
    const std::int64_t end_segment = end_of_segment(row, end_valid);
    prepare(row, end_segment);
    const bool is_together = !boxes_.empty() && plan_.source().reads_together();
    for (std::int64_t next = row; is_together && next < end_segment; ++next) {
      plan_.source().will_read(samples_[static_cast<std::size_t>(next - begin)]);
    }
    for (; row < end_segment; ++row) {
      if (stop.stop_requested()) return false;
      const auto ahead = static_cast<std::size_t>(row - begin) + kRowsAhead;
      if (!boxes_.empty() && !is_together && ahead < samples_.size()) {
        plan_.source().will_read(samples_[ahead]);
      }
      write_row(batch, row, samples_[static_cast<std::size_t>(row - begin)], result);
    }
  }
  for (const Target& padding : targets_) {
    std::memset(
        padding.next, 0,
        static_cast<std::size_t>(padding.end_row - padding.next_row) * padding.piece->row_bytes);
  }
  for (std::size_t i = 0; i < plan_.columns().size(); ++i) {
    plan_.columns()[i].arrays[batch.variants[i]].copy_to_replicas(batch.buffers[i], begin, end);
  }
  return true;
}

void RowWriter::find_targets(const PendingBatch& batch, std::int64_t begin, std::int64_t end) {
  targets_.clear();
  for (std::size_t i = 0; i < plan_.columns().size(); ++i) {
    const Column& column = plan_.columns()[i];
    const BatchArray& array = column.arrays[batch.variants[i]];
    for (const BatchArray::Piece& piece : array.pieces()) {
      const std::int64_t first = std::max(begin, piece.begin_row);
      const std::int64_t last = std::min(end, piece.end_row);
      if (first >= last) continue;
      std::byte* const data = batch.buffers[i][static_cast<std::size_t>(piece.positions[0])].data;
      targets_.push_back(
          {&column, &piece, &array.record(), array.covers_records(), first, last,
           data + static_cast<std::size_t>(first - piece.begin_row) * piece.row_bytes});
    }
  }
}

// The end of the rows with the same targets.
std::int64_t RowWriter::end_of_segment(std::int64_t row, std::int64_t end) const {
  for (const Target& target : targets_) {
    if (target.next_row > row) {
      end = std::min(end, target.next_row);
    } else if (target.end_row > row) {
      end = std::min(end, target.end_row);
    }
  }
  return end;
}

void RowWriter::prepare(std::int64_t row, std::int64_t end) {
  boxes_.clear();
  steps_.clear();
  copies_.clear();
  active_.clear();
  for (std::size_t i = 0; i < targets_.size(); ++i) {
    const Target& target = targets_[i];
    if (!target.has(row)) continue;
    active_.push_back(i);
    const BatchArray::Piece& piece = *target.piece;
    if (target.column->holds == Column::Holds::field && piece.valid != piece.block) {
      std::memset(target.next, 0, static_cast<std::size_t>(end - row) * piece.row_bytes);
    }
  }
  lengths_.assign(active_.size(), 0);
  if (must_read_whole()) {
    prepare_whole();
  } else {
    for (const std::size_t target : active_) prepare_box(target);
  }
  give_scratch();
}

// A record must be bad on every mesh or on none. So if bad records are skipped, each process that
// needs a part of the row reads the whole of every placed field.
bool RowWriter::must_read_whole() const {
  if (policy_ == BadRecords::fail || active_.empty()) return false;
  for (std::size_t i = 0; i < plan_.columns().size(); ++i) {
    const Column& column = plan_.columns()[i];
    if (column.holds != Column::Holds::field) continue;
    const Box& record = column.arrays[batch_->variants[i]].record();
    const bool is_read = std::ranges::any_of(active_, [&](std::size_t active) {
      const Target& target = targets_[active];
      return target.column->holds == Column::Holds::field && target.column->field == column.field &&
             target.covers_records && target.record->contains(record);
    });
    if (!is_read) return true;
  }
  return false;
}

void RowWriter::prepare_whole() {
  for (std::size_t i = 0; i < plan_.columns().size(); ++i) {
    const Column& column = plan_.columns()[i];
    if (column.holds != Column::Holds::field) continue;
    const Box& record = column.arrays[batch_->variants[i]].record();
    const auto known = std::ranges::find_if(
        boxes_, [&](const FieldBox& box) { return box.field == column.field; });
    if (known == boxes_.end()) {
      boxes_.push_back({column.field, {nullptr, record}});
      steps_.push_back(0);
      continue;
    }
    for (std::size_t dim = 0; dim < record.rank(); ++dim) {  // if a field has two bucket lists
      known->to.box.set(dim, 0, std::max(known->to.box.end(dim), record.end(dim)));
    }
  }
  for (const std::size_t target : active_) {
    const Target& active = targets_[target];
    if (active.column->holds != Column::Holds::field || active.piece->valid.empty()) continue;
    const auto box = std::ranges::find_if(
        boxes_, [&](const FieldBox& read) { return read.field == active.column->field; });
    copies_.push_back({static_cast<std::size_t>(box - boxes_.begin()), target});
  }
}

void RowWriter::prepare_box(std::size_t target) {
  const Target& active = targets_[target];
  const BatchArray::Piece& piece = *active.piece;
  if (active.column->holds != Column::Holds::field || piece.valid.empty()) return;
  boxes_.push_back({active.column->field, {piece.is_direct ? active.next : nullptr, piece.valid}});
  steps_.push_back(piece.is_direct ? piece.row_bytes : 0);
  if (!piece.is_direct) copies_.push_back({boxes_.size() - 1, target});
}

void RowWriter::give_scratch() {
  constexpr std::size_t kAlignment = 16;  // of any element
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < boxes_.size(); ++i) {
    if (steps_[i] == 0) bytes += bytes_of(boxes_[i], plan_.source()) + kAlignment;
  }
  if (scratch_.size() < bytes) scratch_.resize(bytes);
  std::size_t used = 0;
  for (std::size_t i = 0; i < boxes_.size(); ++i) {
    if (steps_[i] != 0) continue;
    boxes_[i].to.data = scratch_.data() + used;
    used += (bytes_of(boxes_[i], plan_.source()) + kAlignment - 1) / kAlignment * kAlignment;
  }
}

void RowWriter::write_row(const PendingBatch& batch, std::int64_t row, const Sample& wanted,
                          TicketResult& result) {
  std::int64_t number = batch.first_number + row;
  Sample sample = wanted;
  if (renumber_) {
    number = renumber_(number);
    std::vector<Sample> other;
    order_.samples(number, number + 1, other);
    sample = other[0];
  }
  bool is_read = false;
  std::optional<BadRecord> bad;
  ErrorCode code = ErrorCode::corrupt;
  int reads = 0;
  for (int attempt = 0; !active_.empty() && !is_read; ++attempt) {
    if (attempt > 0) {
      if (policy_ == BadRecords::mask) break;
      if (reads > kMostSubstitutes || attempt > kMostDraws || plan_.source().size() < 2) {
        fail_loader(code,
                    fmt::format("batch {}, record {}, {}; {} substitutes cannot be read either",
                                batch.index, bad->record, bad->message, reads - 1));
      }
      sample.record = substitute(wanted, number, attempt);
      if (!fits(sample)) continue;
    }
    ++reads;
    try {
      read(sample);
      is_read = true;
      if (bad) bad->substitute = sample.record;
    } catch (const Error& e) {
      const bool passed_over = policy_ != BadRecords::fail && is_bad_record(e);
      if (bad && passed_over) continue;
      const std::string message = field_that_fails(sample) + e.what();
      if (!passed_over) {
        fail_loader_because(
            e, fmt::format("batch {}, record {}, {}", batch.index, sample.record, message));
      }
      code = e.code();
      bad = BadRecord{batch.index, row, sample.epoch, sample.record, -1, message};
    }
  }
  finish_row(row, batch.weight, is_read);
  if (bad) result.bad.push_back(std::move(*bad));
  result.digest += digest_of_sample(number);
}

// Reads the parts of the record that the active targets need. Their rows are then complete except
// for mask and weights.
void RowWriter::read(const Sample& sample) {
  for (std::size_t i = 0; i < active_.size(); ++i) {
    const Column& column = *targets_[active_[i]].column;
    if (column.holds != Column::Holds::length) continue;
    const std::int64_t length = plan_.source().length(sample, column.field);
    lengths_[i] = static_cast<std::int32_t>(std::min(length, column.longest));
  }
  if (boxes_.empty()) return;
  {
    const StageTimer timer("read");
    plan_.source().read(sample, boxes_);
  }
  for (const Copy& copy : copies_) {
    const Target& target = targets_[copy.target];
    const FieldBox& from = boxes_[copy.box];
    copy_box(target.piece->valid, size_bytes(plan_.source().fields()[from.field].dtype),
             {from.to.data, from.to.box}, {target.next, target.piece->block});
  }
}

// A substitute must fit the batch's buckets, which were chosen without it.
bool RowWriter::fits(const Sample& sample) const {
  for (std::size_t i = 0; i < plan_.columns().size(); ++i) {
    const Column& column = plan_.columns()[i];
    if (column.buckets.empty() || column.truncate) continue;
    try {
      const std::int64_t length = plan_.source().length(sample, column.field);
      if (length > column.buckets[batch_->variants[i]]) return false;
    } catch (const Error& e) {
      if (!is_bad_record(e)) throw;
      return false;
    }
  }
  return true;
}

void RowWriter::finish_row(std::int64_t row, float weight, bool is_real) {
  for (std::size_t i = 0; i < active_.size(); ++i) {
    Target& target = targets_[active_[i]];
    const std::size_t row_bytes = target.piece->row_bytes;
    switch (target.column->holds) {
      case Column::Holds::field:
        if (!is_real) std::memset(target.next, 0, row_bytes);
        break;
      case Column::Holds::length: {
        const std::int32_t length = is_real ? lengths_[i] : 0;
        std::memcpy(target.next, &length, row_bytes);
        break;
      }
      case Column::Holds::mask:
        *target.next = std::byte{is_real};
        break;
      case Column::Holds::weight: {
        const float value = is_real ? weight : 0;
        std::memcpy(target.next, &value, row_bytes);
        break;
      }
    }
    target.next += row_bytes;
    target.next_row = row + 1;
  }
  for (std::size_t i = 0; i < boxes_.size(); ++i) {
    boxes_[i].to.data += steps_[i];
  }
}

// Any record other than the wanted one; depends only on seed, place and attempt.
std::int64_t RowWriter::substitute(const Sample& wanted, std::int64_t number, int attempt) const {
  const std::uint64_t drawn =
      mix_bits(mix_bits(mix_bits(wanted.seed + kSplitMixGamma) ^
                        (static_cast<std::uint64_t>(number) + kSplitMixGamma)) ^
               (static_cast<std::uint64_t>(attempt) * kSplitMixGamma));
  const auto others = static_cast<std::uint64_t>(plan_.source().size()) - 1;
  const auto other = static_cast<std::int64_t>(drawn % others);
  return other < wanted.record ? other : other + 1;
}

// Finds the first field of an unreadable record that cannot be read by itself, for the message.
std::string RowWriter::field_that_fails(const Sample& sample) const {
  for (const FieldBox& box : boxes_) {
    try {
      plan_.source().read(sample, {&box, 1});
    } catch (const Error&) {
      return fmt::format("field \"{}\": ", plan_.source().fields()[box.field].name);
    }
  }
  return {};
}

}  // namespace shardwise::detail
