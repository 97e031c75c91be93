#include "shardwise/loader/stages/convert.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <cstring>
#include <utility>

#include "shardwise/loader/stages/detail/field_stage.h"
#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

void check_computed(std::string_view stage, const Field& field, DType target) {
  if (field.dtype == target || (is_computed(field.dtype) && is_computed(target))) return;
  throw Error(ErrorCode::unsupported,
              fmt::format("{}: field \"{}\" from {} to {}, needed are types that are computed with",
                          stage, field.name, name(field.dtype), name(target)));
}

class CastStage final : public detail::FieldStage {
 public:
  CastStage(std::shared_ptr<const Source> source, std::string_view field_name, DType dtype)
      : FieldStage(std::move(source), "cast", field_name) {
    check_computed("cast", original(), dtype);
    changed().dtype = dtype;
  }

  std::uint64_t fingerprint() const override { return facts("cast").hash(); }
  std::string describe(std::int64_t samples) const override {
    return described("cast", name(changed().dtype), samples);
  }

 private:
  State state(const Sample&) const override { return {}; }
  Box needed(const State&, const Box& output) const override { return output; }
  void finish(const State&, const ConstBoxView& input, const BoxView& output) const override {
    if (input.data == output.data) return;
    convert(original().dtype, input.data, changed().dtype, output.data,
            as_size(output.box.num_elements()));
  }
};

class NormaliseStage final : public detail::FieldStage {
 public:
  NormaliseStage(std::shared_ptr<const Source> source, std::string_view field_name,
                 std::vector<float> mean, std::vector<float> stddev)
      : FieldStage(std::move(source), "normalise", field_name),
        mean_(std::move(mean)),
        stddev_(std::move(stddev)) {
    check_computed("normalise", original(), DType::f32);
    const Shape& shape = original().shape;
    const std::size_t channels = shape.empty() ? 1 : as_size(shape[shape.size() - 1]);
    if (mean_.size() != stddev_.size() || (mean_.size() != 1 && mean_.size() != channels)) {
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("normalise: field \"{}\" of shape {} by {} means and {} deviations, "
                      "needed is 1 or {} of both",
                      field_name, to_string(shape), mean_.size(), stddev_.size(), channels));
    }
    for (std::size_t i = 0; i < mean_.size(); ++i) {
      if (std::isfinite(mean_[i]) && std::isfinite(stddev_[i]) && stddev_[i] != 0) continue;
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("normalise: field \"{}\" by mean {} and deviation {}, needed are finite "
                      "numbers and no deviation of 0",
                      field_name, mean_[i], stddev_[i]));
    }
    changed().dtype = DType::f32;
  }

  std::uint64_t fingerprint() const override {
    detail::Facts all = facts("normalise");
    for (std::size_t i = 0; i < mean_.size(); ++i) {
      all.add(static_cast<double>(mean_[i])).add(static_cast<double>(stddev_[i]));
    }
    return all.hash();
  }
  std::string describe(std::int64_t samples) const override {
    return described(
        "normalise",
        fmt::format("mean {}, deviation {}", fmt::join(mean_, " "), fmt::join(stddev_, " ")),
        samples);
  }

 private:
  State state(const Sample& sample) const override {
    State result;
    if (original().ragged) result.length = detail::checked_length(inner(), sample, field());
    return result;
  }
  Box needed(const State&, const Box& output) const override { return output; }
  void finish(const State& state, const ConstBoxView& input, const BoxView& output) const override {
    const std::size_t count = as_size(output.box.num_elements());
    if (input.data != output.data) {
      convert(original().dtype, input.data, DType::f32, output.data, count);
    }
    if (mean_.size() == 1) {
      normalise_run(output.data, count, mean_.data(), stddev_.data(), 1);
    } else {
      const std::size_t last = output.box.rank() - 1, begin = as_size(output.box.begin(last));
      normalise_run(output.data, count, mean_.data() + begin, stddev_.data() + begin,
                    as_size(output.box.extent(last)));
    }
    if (original().ragged) detail::zero_rows_from(state.length, sizeof(float), output);
  }

  // Element i uses pair i % channels. Uses memcpy, since the data need not be aligned.
  static void normalise_run(std::byte* data, std::size_t count, const float* mean,
                            const float* stddev, std::size_t channels) {
    const auto normalise_one = [&](std::size_t i, float m, float s) {
      float x = 0;
      std::memcpy(&x, data + i * sizeof(float), sizeof(float));
      x = (x - m) / s;
      std::memcpy(data + i * sizeof(float), &x, sizeof(float));
    };
    if (channels == 1) {
      for (std::size_t i = 0; i < count; ++i) normalise_one(i, mean[0], stddev[0]);
      return;
    }
    for (std::size_t at = 0; at < count; at += channels) {
      for (std::size_t c = 0; c < channels; ++c) normalise_one(at + c, mean[c], stddev[c]);
    }
  }

  std::vector<float> mean_, stddev_;
};

}  // namespace

std::shared_ptr<const Source> cast(std::shared_ptr<const Source> source, std::string_view field,
                                   DType dtype) {
  return std::make_shared<CastStage>(std::move(source), field, dtype);
}

std::shared_ptr<const Source> normalise(std::shared_ptr<const Source> source,
                                        std::string_view field, std::vector<float> mean,
                                        std::vector<float> stddev) {
  return std::make_shared<NormaliseStage>(std::move(source), field, std::move(mean),
                                          std::move(stddev));
}

}  // namespace shardwise
