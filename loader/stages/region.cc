#include "shardwise/loader/stages/region.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "shardwise/loader/order/sample_random.h"
#include "shardwise/loader/stages/detail/field_stage.h"
#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

[[noreturn]] void refuse_region(const std::string& found,
                                ErrorCode code = ErrorCode::invalid_argument) {
  throw Error(code, found);
}

std::string stream_or(const std::string& stream, std::string_view stage, std::string_view field) {
  return stream.empty() ? fmt::format("{} {}", stage, field) : stream;
}

Box shifted_region(const Box& box, const Index& by, std::int64_t sign) {
  Box result;
  for (std::size_t dim = 0; dim < box.rank(); ++dim) {
    const std::int64_t shift = sign * by[dim];
    result.push_back(box.begin(dim) + shift, box.end(dim) + shift);
  }
  return result;
}

class CropStage final : public detail::FieldStage {
 public:
  CropStage(std::shared_ptr<const Source> source, std::string_view field_name, const Shape& shape,
            const CropPosition& position)
      : FieldStage(std::move(source), "crop", field_name),
        position_(position),
        stream_name_(stream_or(position.stream(), "crop", field_name)),
        stream_(stage_number(stream_name_)) {
    const Shape& whole = original().shape;
    const bool at = position.kind() == CropPosition::Kind::at;
    bool fits = shape.size() == whole.size() && (!at || position.begin().size() == whole.size());
    for (std::size_t dim = 0; fits && dim < shape.size(); ++dim) {
      const std::int64_t begin = at ? position.begin()[dim] : 0;
      fits = shape[dim] >= 0 && begin >= 0 && shape[dim] <= whole[dim] &&
             begin <= whole[dim] - shape[dim];
    }
    if (!fits) {
      refuse_region(fmt::format("crop: field \"{}\" of shape {} to {}{}, needed is a part of it",
                                field_name, to_string(whole), to_string(shape),
                                at ? " at " + to_string(position.begin()) : ""));
    }
    changed().shape = shape;
  }

  std::uint64_t fingerprint() const override {
    detail::Facts all = facts("crop");
    all.add(static_cast<std::uint64_t>(position_.kind()));
    if (position_.kind() == CropPosition::Kind::at) all.add(std::span(position_.begin()));
    if (position_.kind() == CropPosition::Kind::random) all.add(stream_);
    return all.hash();
  }
  std::string describe(std::int64_t samples) const override {
    std::string where = "centre";
    if (position_.kind() == CropPosition::Kind::at) where = "at " + to_string(position_.begin());
    if (position_.kind() == CropPosition::Kind::random) {
      where = fmt::format("random {:?}", stream_name_);
    }
    return described("crop", to_string(changed().shape) + " " + where, samples);
  }

 private:
  State state(const Sample& sample) const override {
    State result;
    if (position_.kind() == CropPosition::Kind::at) {
      result.offset = position_.begin();
      return result;
    }
    SampleRandom random(sample, stream_);
    const Shape& whole = original().shape;
    for (std::size_t dim = 0; dim < whole.size(); ++dim) {
      const std::int64_t extent =
          dim == 0 ? detail::checked_length(inner(), sample, field()) : whole[dim];
      const std::int64_t slack = std::max<std::int64_t>(extent - changed().shape[dim], 0);
      result.offset.push_back(
          position_.kind() == CropPosition::Kind::centre
              ? slack / 2
              : static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(slack) + 1)));
    }
    return result;
  }
  Box needed(const State& state, const Box& output) const override {
    return shifted_region(output, state.offset, 1);
  }
  void finish(const State&, const ConstBoxView&, const BoxView&) const override {}
  std::int64_t changed_length(const Sample& sample) const override {
    const std::int64_t length = detail::checked_length(inner(), sample, field());
    return std::clamp<std::int64_t>(length - state(sample).offset[0], 0, changed().shape[0]);
  }

  CropPosition position_;
  std::string stream_name_;
  std::uint64_t stream_;
};

void mirror_in_place(std::size_t dim, std::size_t element_bytes, const BoxView& view) {
  std::size_t outer = 1, inner = element_bytes;
  for (std::size_t i = 0; i < dim; ++i) outer *= as_size(view.box.extent(i));
  for (std::size_t i = dim + 1; i < view.box.rank(); ++i) inner *= as_size(view.box.extent(i));
  const std::size_t count = as_size(view.box.extent(dim));
  for (std::size_t block = 0; block < outer; ++block) {
    std::byte* const begin = view.data + block * count * inner;
    if (inner == 1) {
      std::reverse(begin, begin + count);
      continue;
    }
    for (std::size_t i = 0; i < count / 2; ++i) {
      std::byte* const low = begin + i * inner;
      std::swap_ranges(low, low + inner, begin + (count - 1 - i) * inner);
    }
  }
}

class FlipStage final : public detail::FieldStage {
 public:
  FlipStage(std::shared_ptr<const Source> source, std::string_view field_name, std::size_t dim,
            double probability, const std::string& stream)
      : FieldStage(std::move(source), "flip", field_name),
        dim_(dim),
        probability_(probability),
        stream_name_(stream_or(stream, fmt::format("flip {}", dim), field_name)),
        stream_(stage_number(stream_name_)) {
    if (dim >= original().shape.size()) {
      refuse_region(
          fmt::format("flip: dim {} of field \"{}\" of shape {}, needed is one that it has", dim,
                      field_name, to_string(original().shape)));
    }
    if (dim == 0 && original().ragged) {
      refuse_region(
          fmt::format("flip: dim 0 of field \"{}\" is ragged, needed is another", field_name));
    }
    if (!(probability >= 0 && probability <= 1)) {
      refuse_region(fmt::format("flip: probability is {}, needed is 0 to 1", probability));
    }
  }

  std::uint64_t fingerprint() const override {
    return facts("flip").add(std::uint64_t{dim_}).add(probability_).add(stream_).hash();
  }
  std::string describe(std::int64_t samples) const override {
    return described("flip",
                     fmt::format("dim {}, probability {} {:?}", dim_, probability_, stream_name_),
                     samples);
  }

 private:
  State state(const Sample& sample) const override {
    State result;
    result.flipped = SampleRandom(sample, stream_).uniform() < probability_;
    return result;
  }
  Box needed(const State& state, const Box& output) const override {
    if (!state.flipped) return output;
    Box box = output;
    const std::int64_t extent = original().shape[dim_];
    box.set(dim_, extent - output.end(dim_), extent - output.begin(dim_));
    return box;
  }
  void finish(const State& state, const ConstBoxView&, const BoxView& output) const override {
    if (state.flipped) mirror_in_place(dim_, size_bytes(original().dtype), output);
  }

  std::size_t dim_;
  double probability_;
  std::string stream_name_;
  std::uint64_t stream_;
};

class PadStage final : public detail::FieldStage {
 public:
  PadStage(std::shared_ptr<const Source> source, std::string_view field_name, const Shape& before,
           const Shape& after, double value)
      : FieldStage(std::move(source), "pad", field_name),
        before_(before),
        after_(after),
        value_(value) {
    const Shape& whole = original().shape;
    bool fits = before.size() == whole.size() && after.size() == whole.size();
    Shape shape;
    for (std::size_t dim = 0; fits && dim < whole.size(); ++dim) {
      std::int64_t extent = 0;
      fits = before[dim] >= 0 && after[dim] >= 0 &&
             !__builtin_add_overflow(whole[dim], before[dim], &extent) &&
             !__builtin_add_overflow(extent, after[dim], &extent);
      shape.push_back(extent);
    }
    if (!fits) {
      refuse_region(
          fmt::format("pad: field \"{}\" of shape {} by {} before and {} after, needed is a "
                      "count of 0 or more for each dim",
                      field_name, to_string(whole), to_string(before), to_string(after)));
    }
    num_bytes(shape, size_bytes(original().dtype));  // throws if they overflow
    if (is_computed(original().dtype)) {
      convert(DType::f64, reinterpret_cast<const std::byte*>(&value), original().dtype,
              element_.data(), 1);
    } else if (value != 0) {
      refuse_region(fmt::format("pad: field \"{}\" is {}, which is padded with 0 alone, got {}",
                                field_name, name(original().dtype), value),
                    ErrorCode::unsupported);
    }
    changed().shape = shape;
  }

  std::uint64_t fingerprint() const override {
    std::uint64_t low = 0;
    std::memcpy(&low, element_.data(), sizeof(low));
    return facts("pad").add(std::span(before_)).add(std::span(after_)).add(low).hash();
  }
  std::string describe(std::int64_t samples) const override {
    return described(
        "pad",
        fmt::format("{} before, {} after, value {}", to_string(before_), to_string(after_), value_),
        samples);
  }

 private:
  State state(const Sample& sample) const override {
    State result;
    result.length = detail::checked_length(inner(), sample, field());
    return result;
  }
  Box needed(const State& state, const Box& output) const override {
    Shape own = original().shape;
    if (!own.empty()) own[0] = state.length;
    Box box = intersect(shifted_region(output, before_, -1), Box::whole(own));
    if (!box.empty() || output.empty()) return box;
    // The place of an empty box does not matter, but it must be inside the source's field.
    return Box(Index::filled(own.size(), 0), Index::filled(own.size(), 0));
  }
  void finish(const State& state, const ConstBoxView& input, const BoxView& output) const override {
    if (input.data == output.data) return;  // already read in place
    const std::size_t element_bytes = size_bytes(original().dtype);
    fill(output, element_bytes);
    if (changed().ragged)
      detail::zero_rows_from(padded_length(state.length), element_bytes, output);
    if (input.box.empty()) return;
    const Box place = shifted_region(input.box, before_, 1);
    copy_box(place, element_bytes, {input.data, place}, output);
  }
  std::int64_t changed_length(const Sample& sample) const override {
    return padded_length(detail::checked_length(inner(), sample, field()));
  }
  std::int64_t padded_length(std::int64_t length) const { return before_[0] + length + after_[0]; }

  void fill(const BoxView& output, std::size_t element_bytes) const {
    const std::size_t bytes = num_bytes(output.box.shape(), element_bytes);
    const bool all_zero =
        std::ranges::all_of(element_, [](std::byte b) { return b == std::byte{}; });
    if (all_zero) {
      std::memset(output.data, 0, bytes);
      return;
    }
    for (std::size_t at = 0; at < bytes; at += element_bytes) {
      std::memcpy(output.data + at, element_.data(), element_bytes);
    }
  }

  Shape before_, after_;
  double value_;
  std::array<std::byte, 16> element_{};
};

}  // namespace

std::shared_ptr<const Source> crop(std::shared_ptr<const Source> source, std::string_view field,
                                   const Shape& shape, const CropPosition& position) {
  return std::make_shared<CropStage>(std::move(source), field, shape, position);
}

std::shared_ptr<const Source> flip(std::shared_ptr<const Source> source, std::string_view field,
                                   std::size_t dim, double probability, const std::string& stream) {
  return std::make_shared<FlipStage>(std::move(source), field, dim, probability, stream);
}

std::shared_ptr<const Source> pad(std::shared_ptr<const Source> source, std::string_view field,
                                  const Shape& before, const Shape& after, double value) {
  return std::make_shared<PadStage>(std::move(source), field, before, after, value);
}

}  // namespace shardwise
