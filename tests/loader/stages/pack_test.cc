#include "shardwise/loader/stages/pack.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "loader/stages/stage_checks.h"
#include "shardwise/loader/order/sample_random.h"
#include "shardwise/loader/stages/detail/best_fit.h"
#include "shardwise/loader/stages/detail/plan_cache.h"
#include "shardwise/loader/stages/select.h"
#include "shardwise/storage/hash.h"
#include "testing/errors.h"

namespace shardwise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Documents of the given lengths; token t of document d is 1000 * (d + 1) + t.
class DocumentSource final : public Source {
 public:
  explicit DocumentSource(std::vector<std::int64_t> lengths, DType dtype = DType::i32)
      : lengths_(std::move(lengths)) {
    std::int64_t most = 0;
    for (const std::int64_t length : lengths_) most = std::max(most, length);
    fields_ = {{"id", DType::u8, {}}, {"text", dtype, {most}, true}};
  }
  static std::int32_t token(std::int64_t document, std::int64_t at) {
    return static_cast<std::int32_t>(1000 * (document + 1) + at);
  }
  std::int64_t size() const override { return static_cast<std::int64_t>(lengths_.size()); }
  std::span<const Field> fields() const override { return fields_; }
  std::int64_t length(const Sample& sample, std::size_t field) const override {
    return field == 1 ? lengths_[as_size(sample.record)] : 1;
  }
  void read(const Sample& sample, std::span<const FieldBox> boxes) const override {
    ASSERT_EQ(sample.epoch, 0);
    for (const FieldBox& box : boxes) {
      ASSERT_EQ(box.field, 1u);
      ASSERT_LE(box.to.box.end(0), lengths_[as_size(sample.record)]);
      tokens_ += box.to.box.extent(0);
      for (std::int64_t at = box.to.box.begin(0); at < box.to.box.end(0); ++at) {
        const std::int32_t value = token(sample.record, at);
        std::memcpy(box.to.data + as_size(at - box.to.box.begin(0)) * sizeof(value), &value,
                    sizeof(value));
      }
    }
    ++reads_;
  }
  std::uint64_t fingerprint() const override {
    return hash64(reinterpret_cast<const std::byte*>(lengths_.data()), lengths_.size() * 8);
  }
  std::vector<std::int64_t>& lengths() { return lengths_; }
  std::int64_t tokens() const { return tokens_; }
  std::int64_t reads() const { return reads_; }

 private:
  std::vector<std::int64_t> lengths_;
  std::vector<Field> fields_;
  mutable std::atomic<std::int64_t> tokens_{0}, reads_{0};
};

struct PackRow {
  std::vector<std::int32_t> tokens, segments, positions;
};

PackRow row_of(const Source& packs, std::int64_t record, std::int64_t epoch = 0) {
  const Sample sample{record, epoch, 7};
  return {values_of<std::int32_t>(packs, sample, 0), values_of<std::int32_t>(packs, sample, 1),
          values_of<std::int32_t>(packs, sample, 2)};
}

TEST(PackStage, LaysDocumentsByBestFit) {
  const auto source =
      std::make_shared<DocumentSource>(std::vector<std::int64_t>{3, 10, 5, 1, 0, 4});
  const auto packs = pack(source, {.field = "text", .window = 8});
  EXPECT_EQ(packs->fields()[0], (Field{"text", DType::i32, {8}}));
  EXPECT_EQ(packs->fields()[1], (Field{"text_segments", DType::i32, {8}}));
  EXPECT_EQ(packs->fields()[2], (Field{"text_positions", DType::i32, {8}}));
  // Pieces by length: 8 of document 1; 5; 4; 3; 2 of document 1; 1. So [8], [5 3], [4 2 1].
  ASSERT_EQ(packs->size(), 3);
  const PackRow rows[] = {row_of(*packs, 0), row_of(*packs, 1), row_of(*packs, 2, 5)};
  EXPECT_THAT(rows[0].tokens, ElementsAre(2000, 2001, 2002, 2003, 2004, 2005, 2006, 2007));
  EXPECT_THAT(rows[1].tokens, ElementsAre(3000, 3001, 3002, 3003, 3004, 1000, 1001, 1002));
  EXPECT_THAT(rows[1].segments, ElementsAre(1, 1, 1, 1, 1, 2, 2, 2));
  EXPECT_THAT(rows[1].positions, ElementsAre(0, 1, 2, 3, 4, 0, 1, 2));
  EXPECT_THAT(rows[2].tokens, ElementsAre(6000, 6001, 6002, 6003, 2008, 2009, 4000, 0));
  EXPECT_THAT(rows[2].segments, ElementsAre(1, 1, 1, 1, 2, 2, 3, 0));
  EXPECT_THAT(rows[2].positions, ElementsAre(0, 1, 2, 3, 8, 9, 0, 0));
}

TEST(PackStage, PutsTheEosAfterEachDocument) {
  const auto source = std::make_shared<DocumentSource>(std::vector<std::int64_t>{4, 3, 0});
  const auto packs = pack(source, {.field = "text", .window = 4, .eos = -1});
  // 4 + eos is cut in 4 and 1; 3 + eos; eos of the empty one.
  ASSERT_EQ(packs->size(), 3);
  EXPECT_THAT(row_of(*packs, 0).tokens, ElementsAre(1000, 1001, 1002, 1003));
  EXPECT_THAT(row_of(*packs, 1).tokens, ElementsAre(2000, 2001, 2002, -1));
  EXPECT_THAT(row_of(*packs, 2).tokens, ElementsAre(-1, -1, 0, 0));
  EXPECT_THAT(row_of(*packs, 2).segments, ElementsAre(1, 2, 0, 0));
  EXPECT_THAT(row_of(*packs, 2).positions, ElementsAre(4, 0, 0, 0));
}

std::vector<std::int64_t> random_lengths(RandomShardings& random, std::int64_t count,
                                         std::int64_t most) {
  std::vector<std::int64_t> lengths;
  for (std::int64_t i = 0; i < count; ++i) lengths.push_back(random.draw(0, most));
  return lengths;
}

// Every token of every document once, pieces whole, segments and positions right.
void expect_all_tokens(const Source& packs, const std::vector<std::int64_t>& lengths,
                       std::int64_t window, bool eos) {
  std::set<std::pair<std::int64_t, std::int64_t>> seen;
  std::int64_t eos_seen = 0, tokens = 0;
  for (std::int64_t record = 0; record < packs.size(); ++record) {
    const PackRow row = row_of(packs, record);
    std::int32_t segment = 0;
    bool padding = false;
    for (std::size_t i = 0; i < as_size(window); ++i) {
      padding = padding || row.segments[i] == 0;
      if (padding) {
        ASSERT_EQ(row.segments[i], 0);
        ASSERT_EQ(row.tokens[i], 0);
        ASSERT_EQ(row.positions[i], 0);
        continue;
      }
      ++tokens;
      if (row.segments[i] != segment) {
        ASSERT_EQ(row.segments[i], segment + 1);
        segment = row.segments[i];
        ASSERT_EQ(row.positions[i] % window, 0) << "a document is cut at multiples of the window";
      } else {
        ASSERT_EQ(row.positions[i], row.positions[i - 1] + 1);
      }
      if (row.tokens[i] == -1) {
        ++eos_seen;
        continue;
      }
      const std::int64_t document = row.tokens[i] / 1000 - 1, at = row.tokens[i] % 1000;
      ASSERT_EQ(row.positions[i], at);
      ASSERT_TRUE(seen.emplace(document, at).second) << document << " " << at;
    }
    ASSERT_GT(segment, 0) << "an empty pack";
  }
  std::int64_t expected = 0;
  for (const std::int64_t length : lengths) expected += length;
  EXPECT_EQ(static_cast<std::int64_t>(seen.size()), expected);
  EXPECT_EQ(eos_seen, eos ? static_cast<std::int64_t>(lengths.size()) : 0);
  EXPECT_EQ(tokens, expected + eos_seen);
}

TEST(PackStage, EveryTokenComesExactlyOnceAndBoxesAreOfTheWhole) {
  RandomShardings random(1);
  for (int trial = 0; trial < 60; ++trial) {
    SCOPED_TRACE(trial);
    const std::vector<std::int64_t> lengths =
        random_lengths(random, random.draw(1, 60), random.draw(1, 40));
    const std::int64_t window = random.draw(1, 30);
    const bool eos = random.draw(0, 1) == 1;
    const auto source = std::make_shared<DocumentSource>(lengths);
    PackOptions options{.field = "text", .window = window, .documents = random.draw(1, 20)};
    if (eos) options.eos = -1;
    if (!eos && std::ranges::all_of(lengths, [](auto length) { return length == 0; })) continue;
    const auto packs = pack(source, options);
    expect_all_tokens(*packs, lengths, window, eos);
    for (std::int64_t record = 0; record < packs->size(); ++record) {
      expect_boxes_of_whole(*packs, {record, 2, 3}, 4, random);
    }
    options.threads = 4;
    const auto again = pack(source, options);
    EXPECT_EQ(again->fingerprint(), packs->fingerprint());
    EXPECT_EQ(again->size(), packs->size());
  }
}

// Every box of every pack: bytes outside its place stay as they were. A piece may end where its
// document ends, with the eos in another pack or beyond the box.
TEST(PackStage, WritesWithinItsBoxAlone) {
  RandomShardings random(5);
  for (int trial = 0; trial < 40; ++trial) {
    const std::int64_t window = random.draw(1, 6);
    const auto source =
        std::make_shared<DocumentSource>(random_lengths(random, random.draw(1, 8), 3 * window));
    const auto packs = pack(
        source, {.field = "text", .window = window, .documents = random.draw(1, 8), .eos = -1});
    constexpr std::size_t kBeside = 3 * sizeof(std::int32_t);
    for (std::int64_t record = 0; record < packs->size(); ++record) {
      for (std::int64_t begin = 0; begin < window; ++begin) {
        for (std::int64_t end = begin; end <= window; ++end) {
          for (std::size_t field = 0; field < 3; ++field) {
            const std::size_t bytes = as_size(end - begin) * sizeof(std::int32_t);
            std::vector<std::byte> memory(bytes + 2 * kBeside, std::byte{0xEE});
            const FieldBox to{field, {memory.data() + kBeside, Box({begin}, {end})}};
            packs->read({record, 0, 0}, {&to, 1});
            std::fill_n(memory.begin() + kBeside, bytes, std::byte{0xEE});
            ASSERT_EQ(memory, std::vector<std::byte>(memory.size(), std::byte{0xEE}))
                << "trial " << trial << ", record " << record << ", field " << field << ", box "
                << to_string(to.to.box);
          }
        }
      }
    }
  }
}

TEST(PackStage, ABoxReadsItsTokensAlone) {
  RandomShardings random(2);
  const auto source = std::make_shared<DocumentSource>(random_lengths(random, 50, 30));
  const auto packs = pack(source, {.field = "text", .window = 16, .documents = 16});
  EXPECT_EQ(source->reads(), 0) << "lengths alone are needed to begin";
  for (std::int64_t record = 0; record < packs->size(); ++record) {
    const std::int64_t before = source->tokens();
    const std::vector<std::byte> half = box_of(*packs, {record, 0, 0}, 0, Box({4}, {12}));
    const std::vector<std::int32_t> segments = row_of(*packs, record).segments;
    const std::int64_t real = 8 - std::count(segments.begin() + 4, segments.begin() + 12, 0);
    const std::int64_t all = 16 - std::count(segments.begin(), segments.end(), 0);
    EXPECT_EQ(source->tokens() - before, real + all);
  }
  const std::int64_t before = source->reads();
  box_of(*packs, {0, 0, 0}, 1, Box({0}, {16}));
  box_of(*packs, {0, 0, 0}, 2, Box({0}, {16}));
  EXPECT_EQ(source->reads(), before) << "segments and positions need no token";
}

// Lengths as of the text that the literature packs: log-normal, mean 421, 2,048 at most.
TEST(PackStage, FillsToNinetyNinePerCent) {
  std::vector<std::int64_t> lengths;
  std::int64_t tokens = 0;
  SampleRandom random({.seed = 1}, 0);
  for (int i = 0; i < 200000; ++i) {
    const double length = std::exp(std::log(421) - 0.5 + random.normal());
    lengths.push_back(std::clamp<std::int64_t>(std::llround(length), 1, 2048));
    tokens += lengths.back();
  }
  const auto source = std::make_shared<DocumentSource>(lengths);
  const auto fill = [&](std::int64_t documents) {
    const auto packs = pack(source, {.field = "text", .window = 2048, .documents = documents});
    return static_cast<double>(tokens) / static_cast<double>(packs->size() * 2048);
  };
  EXPECT_GE(fill(1024), 0.99);
  EXPECT_GT(fill(4096), fill(1024));
  EXPECT_GT(fill(1024), fill(64));
}

TEST(PackStage, IsTheSameFromManyThreads) {
  RandomShardings random(3);
  const auto source = std::make_shared<DocumentSource>(random_lengths(random, 400, 30));
  const auto packs = shuffle(pack(source, {.field = "text", .window = 16, .documents = 8}));
  std::vector<PackRow> expected;
  for (std::int64_t record = 0; record < packs->size(); ++record) {
    expected.push_back(row_of(*packs, record));
  }
  std::atomic<int> wrong{0};
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (std::int64_t i = 0; i < packs->size(); ++i) {
          const std::int64_t record = (i + t * 31) % packs->size();
          const PackRow row = row_of(*packs, record);
          const PackRow& other = expected[as_size(record)];
          if (row.tokens != other.tokens || row.segments != other.segments) ++wrong;
        }
      });
    }
  }
  EXPECT_EQ(wrong, 0);
}

TEST(PackStage, RecordsOfOneLengthArePackedToo) {
  const auto packs =
      pack(numbers<std::uint16_t>({"t", DType::u16, {3}}, {1, 2, 3, 4, 5, 6, 7, 8, 9}),
           {.field = "t", .window = 7, .eos = 99});
  ASSERT_EQ(packs->size(), 3);
  EXPECT_THAT(values_of<std::uint16_t>(*packs, {}, 0), ElementsAre(1, 2, 3, 99, 0, 0, 0));
}

TEST(PackStage, TellsProgressInDocuments) {
  std::vector<std::int64_t> done;
  pack(std::make_shared<DocumentSource>(std::vector<std::int64_t>(25, 3)),
       {.field = "text",
        .window = 8,
        .documents = 10,
        .threads = 2,
        .progress = [&](std::int64_t now, std::int64_t total) {
          EXPECT_EQ(total, 25);
          done.push_back(now);
        }});
  EXPECT_THAT(done, ElementsAre(10, 20, 25));
}

TEST(PackStage, SeesLengthsThatChange) {
  const auto source = std::make_shared<DocumentSource>(std::vector<std::int64_t>{5, 5, 5, 5});
  const auto packs = pack(source, {.field = "text", .window = 5});
  source->lengths() = {5, 5, 0, 0};
  EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { row_of(*packs, 0); }),
              HasSubstr("documents from 0 on make 2 packs, made 4 before"));
  source->lengths() = {5, 5, 6, 5};
  EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { row_of(*packs, 0); }),
              HasSubstr("length of field \"text\" of record 2 is 6, needed is 0 to 5"));
}

TEST(PackStage, RefusesWhatItCannotDo) {
  const auto text = std::make_shared<DocumentSource>(std::vector<std::int64_t>{3, 4});
  const auto none = std::make_shared<DocumentSource>(std::vector<std::int64_t>{0, 0});
  const auto image = std::make_shared<RaggedSource>(
      2, std::vector<Field>{
             {"image", DType::u8, {2, 2}}, {"c", DType::c64, {2}}, {"s", DType::u8, {}}});
  const struct {
    std::shared_ptr<const Source> source;
    PackOptions options;
    ErrorCode code;
    const char* message;
  } cases[] = {
      {nullptr, {.field = "text", .window = 4}, ErrorCode::invalid_argument, "source is null"},
      {text, {.field = "y", .window = 4}, ErrorCode::no_such_name, "no field \"y\""},
      {text, {.field = "text"}, ErrorCode::invalid_argument, "window is 0, needed is 1"},
      {text,
       {.field = "text", .window = std::int64_t{1} << 31},
       ErrorCode::invalid_argument,
       "window is 2147483648"},
      {text,
       {.field = "text", .window = 4, .documents = 0},
       ErrorCode::invalid_argument,
       "documents is 0, needed is 1 to 65536"},
      {text,
       {.field = "text", .window = 4, .threads = 0},
       ErrorCode::invalid_argument,
       "threads is 0"},
      {image,
       {.field = "image", .window = 4},
       ErrorCode::invalid_argument,
       "\"image\" has shape [2, 2], needed is one dim"},
      {image, {.field = "s", .window = 4}, ErrorCode::invalid_argument, "has shape []"},
      {image, {.field = "c", .window = 4, .eos = 1}, ErrorCode::unsupported, "\"c\" is c64"},
      {none, {.field = "text", .window = 4}, ErrorCode::invalid_argument, "has no token in 2"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.message);
    EXPECT_THAT(message_of(c.code, [&] { pack(c.source, c.options); }), HasSubstr(c.message));
  }
}

TEST(PackStage, FingerprintTellsItsOptions) {
  const auto print = [](std::vector<std::int64_t> lengths, PackOptions options) {
    options.field = "text";
    return pack(std::make_shared<DocumentSource>(std::move(lengths)), options)->fingerprint();
  };
  const std::uint64_t prints[] = {print({3, 4}, {.window = 4}), print({3, 4}, {.window = 5}),
                                  print({3, 4}, {.window = 4, .eos = 0}),
                                  print({3, 4}, {.window = 4, .eos = 1}),
                                  print({3, 4}, {.window = 4, .documents = 1})};
  EXPECT_EQ(std::set<std::uint64_t>(std::begin(prints), std::end(prints)).size(), 5u);
  EXPECT_EQ(print({3, 4}, {.window = 4, .threads = 2}), prints[0]);
}

TEST(PlanCache, HoldsThoseUsedLastWithinItsBytes) {
  const auto plan = std::make_shared<const detail::PackPlan>(0, std::vector<std::int64_t>{3, 4}, 8);
  const std::size_t bytes = plan->memory_bytes();
  detail::PlanCache cache(3 * bytes);
  EXPECT_EQ(cache.find(1), nullptr);
  for (const std::int64_t window : {1, 2, 3, 3}) cache.add(window, plan);
  EXPECT_EQ(cache.bytes(), 3 * bytes);
  EXPECT_EQ(cache.find(1), plan);  // so 2 is the one that was not used for longest
  cache.add(4, plan);
  EXPECT_EQ(cache.bytes(), 3 * bytes);
  EXPECT_EQ(cache.find(2), nullptr);
  for (const std::int64_t window : {1, 3, 4}) EXPECT_EQ(cache.find(window), plan);
  detail::PlanCache small(1);
  for (const std::int64_t window : {1, 2}) small.add(window, plan);
  EXPECT_EQ(small.bytes(), bytes) << "the last is held in any case";
  EXPECT_EQ(small.find(2), plan);
}

// Against the definition: each piece goes to the fullest pack that has room.
TEST(PackPlan, IsBestFitDecreasing) {
  RandomShardings random(4);
  for (int trial = 0; trial < 200; ++trial) {
    const std::int64_t window = random.draw(1, 25);
    const std::vector<std::int64_t> lengths =
        random_lengths(random, random.draw(0, 40), random.draw(0, 60));
    const detail::PackPlan plan(100, lengths, window);
    std::vector<detail::PackPiece> pieces;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      for (std::int64_t begin = 0; begin < lengths[i]; begin += window) {
        pieces.push_back(
            {100 + static_cast<std::int64_t>(i), begin, std::min(window, lengths[i] - begin)});
      }
    }
    std::ranges::stable_sort(pieces, [](auto a, auto b) { return a.length > b.length; });
    std::vector<std::vector<detail::PackPiece>> packs;
    std::vector<std::int64_t> rooms;
    for (const detail::PackPiece& piece : pieces) {
      std::size_t best = packs.size();
      for (std::size_t i = 0; i < packs.size(); ++i) {
        if (rooms[i] >= piece.length && (best == packs.size() || rooms[i] < rooms[best])) best = i;
      }
      if (best == packs.size()) {
        packs.emplace_back();
        rooms.push_back(window);
      }
      packs[best].push_back(piece);
      rooms[best] -= piece.length;
    }
    ASSERT_EQ(plan.num_packs(), static_cast<std::int64_t>(packs.size()));
    for (std::size_t i = 0; i < packs.size(); ++i) {
      const auto pack_of = plan.pack(static_cast<std::int64_t>(i));
      ASSERT_EQ(std::vector<detail::PackPiece>(pack_of.begin(), pack_of.end()), packs[i]);
    }
  }
}

}  // namespace
}  // namespace shardwise
