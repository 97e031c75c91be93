#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "loader/stages/stage_checks.h"
#include "shardwise/loader/stages/convert.h"
#include "shardwise/loader/stages/filter.h"
#include "shardwise/loader/stages/map.h"
#include "shardwise/loader/stages/pack.h"
#include "shardwise/loader/stages/region.h"
#include "shardwise/loader/stages/select.h"

namespace shardwise {
namespace {

using SourcePtr = std::shared_ptr<const Source>;

// Sums and a copy of each record's first field, with noise.
void add_noise(const Sample&, SampleRandom& random, std::span<const FieldValue> in,
               std::span<FieldBuffer> out) {
  for (std::size_t i = 0; i < in[0].data.size(); ++i) {
    out[0].data[i] = in[0].data[i] ^ static_cast<std::byte>(random.below(256));
  }
  out[0].length = in[0].length;
}

/// Chains of stages over random fields.
class RandomChain {
 public:
  explicit RandomChain(RandomShardings& random) : random_(random) {
    std::vector<Field> fields;
    const DType dtypes[] = {DType::u8, DType::i16, DType::f32, DType::bf16, DType::i64};
    for (std::int64_t i = random.draw(1, 3); i > 0; --i) {
      Field field{"f" + std::to_string(fields.size()), dtypes[random.draw(0, 4)],
                  random.draw(0, 1) == 0 ? Shape{random.draw(1, 6), random.draw(1, 5)}
                                         : Shape{random.draw(1, 20)}};
      field.ragged = random.draw(0, 2) == 0;
      fields.push_back(field);
    }
    for (std::size_t i = 0; i < 2; ++i) {
      bases_[i] = std::make_shared<RaggedSource>(random.draw(3, 30), fields);
    }
  }

  SourcePtr make(std::int64_t stages) {
    text_.clear();
    SourcePtr source = bases_[0];
    for (std::int64_t i = 0; i < stages; ++i) source = add(source);
    return source;
  }
  const std::string& text() const { return text_; }

 private:
  SourcePtr add(const SourcePtr& source) {
    const std::vector<Field> fields(source->fields().begin(), source->fields().end());
    const Field field = fields[static_cast<std::size_t>(random_.draw(0, std::ssize(fields) - 1))];
    const auto done = [&](const char* stage, SourcePtr result) {
      text_ += std::string(" ") + stage + " " + field.name;
      return result;
    };
    const std::size_t rank = field.shape.size();
    Shape part = field.shape, before = Shape::filled(rank, 0), after = before;
    for (std::size_t dim = 0; dim < rank; ++dim) {
      part[dim] = random_.draw(1, std::max<std::int64_t>(part[dim], 1));
      before[dim] = random_.draw(0, 2);
      after[dim] = random_.draw(0, 2);
    }
    const bool fixed_order = text_.find("shuffle") == text_.npos && text_.find("mix") == text_.npos;
    switch (random_.draw(0, 10)) {
      case 0:
        return done("shuffle", shuffle(source, 3));
      case 1:
        return done("take", take(source, 0, (source->size() + 1) / 2));
      case 2:
        return done("repeat", repeat(source, 2));
      case 3:
        return done("mix", mix({source, take(source, 0, 1)}, {2, 1}));
      case 4:
        if (!fixed_order) return source;
        return done("filter", filter(source, {.name = "some",
                                              .lengths = {field.name},
                                              .keep = [n = std::make_shared<std::atomic<int>>(0)](
                                                          auto) { return ++*n % 4 != 2; }}));
      case 5:
        return done("crop", crop(source, field.name, part, CropPosition::random()));
      case 6:
        if (rank == 0 || (field.ragged && rank == 1)) return source;
        return done("flip", flip(source, field.name, rank - 1, 0.5));
      case 7:
        return done("pad", pad(source, field.name, before, after, 3));
      case 8:
        return done("cast", cast(source, field.name, DType::f32));
      case 9:
        return done("normalise", normalise(source, field.name, {2}, {3}));
      default: {
        std::vector<std::string> kept;
        for (const Field& other : fields) {
          if (other.name != field.name) kept.push_back(other.name);
        }
        return done("map", map(source, {field}, add_noise,
                               {.name = "noise", .inputs = {field.name}, .keep = kept}));
      }
    }
  }

  RandomShardings& random_;
  std::shared_ptr<const RaggedSource> bases_[2];
  std::string text_;
};

using AllBytes = std::vector<std::vector<std::byte>>;

AllBytes read_all(const Source& source, int threads) {
  const std::int64_t records = std::min<std::int64_t>(source.size(), 40);
  const std::size_t fields = source.fields().size();
  AllBytes all(as_size(2 * records) * fields);
  std::atomic<std::int64_t> next{0};
  const auto work = [&] {
    for (std::int64_t i = next++; i < 2 * records; i = next++) {
      for (std::size_t field = 0; field < fields; ++field) {
        all[as_size(i) * fields + field] = whole_of(source, {i / 2, i % 2, 11}, field);
      }
    }
  };
  std::vector<std::jthread> others;
  for (int t = 1; t < threads; ++t) others.emplace_back(work);
  work();
  others.clear();
  return all;
}

TEST(StageChains, BoxesAreOfTheWholeAndThreadsSeeTheSame) {
  RandomShardings random(7);
  for (int trial = 0; trial < 250; ++trial) {
    RandomChain chain(random);
    const SourcePtr source = chain.make(random.draw(1, 7));
    SCOPED_TRACE(std::to_string(trial) + ":" + chain.text());
    ASSERT_GT(source->size(), 0);
    for (int i = 0; i < 12; ++i) {
      const Sample sample{random.draw(0, source->size() - 1), random.draw(0, 5),
                          static_cast<std::uint64_t>(random.draw(0, 3))};
      expect_boxes_of_whole(*source, sample, 6, random);
    }
    EXPECT_EQ(read_all(*source, 1), read_all(*source, 4));
    EXPECT_EQ(source->fingerprint(), source->fingerprint());
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(StageChains, TextFromEndToEnd) {
  const auto text = std::make_shared<RaggedSource>(
      300, std::vector<Field>{{"t", DType::u16, {50}, true}, {"lang", DType::u8, {}}});
  const auto part = [&](const char* predicate, std::uint64_t salt) {
    return shuffle(pack(filter(text, parse_filter(predicate, text->fields())),
                        {.field = "t", .window = 32, .documents = 64, .eos = 0}),
                   salt);
  };
  const auto run =
      cast(mix({part("length(t)>=4 && lang<128", 1), part("length(t)>=4 && lang>=128", 2)}, {3, 1}),
           "t", DType::i32);
  RandomShardings random(8);
  for (std::int64_t record = 0; record < run->size(); ++record) {
    expect_boxes_of_whole(*run, {record, 1, 5}, 4, random);
  }
  EXPECT_EQ(read_all(*run, 1), read_all(*run, 4));
}

}  // namespace
}  // namespace shardwise
