// Sources that make records together: each thread names its records before it reads the first one.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "shardwise/loader/host_loader.h"
#include "shardwise/loader/source.h"
#include "shardwise/loader/stages/filter.h"
#include "shardwise/loader/stages/select.h"
#include "testing/make_sharding.h"

namespace shardwise {
namespace {

using SourcePtr = std::shared_ptr<const Source>;

/// Record r is the number first + r. Keeps how many records each call has made, and how many were
/// read that their thread had not named.
class TogetherSource final : public Source {
 public:
  explicit TogetherSource(std::int64_t size, std::int64_t first = 0, std::string name = "x")
      : size_(size), first_(first), field_{std::move(name), DType::i64, {}} {}

  std::int64_t size() const override { return size_; }
  std::span<const Field> fields() const override { return {&field_, 1}; }
  bool reads_together() const override { return true; }
  void will_read(const Sample& sample) const override {
    const std::lock_guard lock(mutex_);
    named_[std::this_thread::get_id()].insert(sample.record);
  }
  void read(const Sample& sample, std::span<const FieldBox> boxes) const override {
    const std::lock_guard lock(mutex_);
    // Each is handed out once for each naming: a thread may have the same records in the next
    // epoch.
    std::multiset<std::int64_t>& made = made_[std::this_thread::get_id()];
    if (!made.extract(sample.record)) {
      made = std::exchange(named_[std::this_thread::get_id()], {});
      groups_.push_back(made.size());
      if (!made.extract(sample.record)) ++unnamed_;
    }
    const std::int64_t value = first_ + sample.record;
    for (const FieldBox& box : boxes) {
      if (!box.to.box.empty()) std::memcpy(box.to.data, &value, sizeof value);
    }
  }

  std::vector<std::size_t> groups() const { return groups_; }
  std::int64_t unnamed() const { return unnamed_; }

 private:
  using OfThreads = std::map<std::thread::id, std::multiset<std::int64_t>>;

  std::int64_t size_, first_;
  Field field_;
  mutable std::mutex mutex_;
  mutable OfThreads named_, made_;
  mutable std::vector<std::size_t> groups_;
  mutable std::int64_t unnamed_ = 0;
};

/// The numbers of field "x" of two epochs, in their order.
std::vector<std::int64_t> read_all(const SourcePtr& source, std::int64_t batch_size, int threads) {
  HostLoader loader(source, {{"x", make_sharding("-", "1")}},
                    {.batch_size = batch_size,
                     .epochs = 2,
                     .order = RecordOrder::sequential,
                     .last_batch = LastBatch::pad,
                     .threads = threads});
  std::vector<std::int64_t> values;
  for (const HostBatch& batch : loader) {
    const std::span<const std::int64_t> rows = batch.field("x").as<std::int64_t>();
    values.insert(values.end(), rows.begin(), rows.begin() + batch.valid_rows);
  }
  return values;
}

std::shared_ptr<const TogetherSource> together(std::int64_t size, std::int64_t first = 0,
                                               std::string name = "x") {
  return std::make_shared<const TogetherSource>(size, first, std::move(name));
}

// A batch is cut by threads alone, and each part is made by one call.
TEST(ReadsTogether, ABatchIsMadeByOneCallOfEachThread) {
  for (const int threads : {1, 3, 5}) {
    const auto source = together(24);
    std::vector<std::int64_t> expected(48);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      expected[i] = static_cast<std::int64_t>(i) % 24;
    }
    EXPECT_EQ(read_all(source, 12, threads), expected);
    EXPECT_EQ(source->unnamed(), 0);
    // 12 of 1, 3 times 4 of 3, 4 times 3 of 5 threads: rounded up, as few calls as can be.
    const std::size_t of_a_call = threads == 1 ? 12 : threads == 3 ? 4 : 3;
    std::vector<std::size_t> calls(1 + 48 / of_a_call, of_a_call);
    calls[0] = 24;  // the fingerprint's samples, all of them in a source this small
    EXPECT_EQ(source->groups(), calls);
  }
}

// Stages pass the names on, as the numbers that their sources have.
TEST(ReadsTogether, StagesNameTheRecordsThatTheyTake) {
  struct Case {
    const char* name;
    SourcePtr chain;
    std::vector<std::shared_ptr<const TogetherSource>> sources;
    std::vector<std::int64_t> expected;
  };
  const auto a = together(12), b = together(6, 100), c = together(12), d = together(6, 0, "y"),
             e = together(6), f = together(12), g = together(8), h = together(4), i = together(9),
             j = together(4, 50);
  const Case cases[] = {
      {"take", take(a, 4, 10), {a}, {4, 5, 6, 7, 8, 9}},
      {"concat", concat({e, b}), {e, b}, {0, 1, 2, 3, 4, 5, 100, 101, 102, 103, 104, 105}},
      {"repeat", repeat(take(c, 0, 3), 2), {c}, {0, 1, 2, 0, 1, 2}},
      {"zip", zip({take(f, 2, 8), d}), {f, d}, {2, 3, 4, 5, 6, 7}},
      {"mix", mix({g, j}, {2, 1}), {g, j}, {0, 50, 1, 2, 51, 3, 4, 52, 5, 6, 53, 7}},
      {"filter", filter(i, parse_filter("x>=5", i->fields())), {i}, {5, 6, 7, 8}},
      {"shuffle", shuffle(h), {h}, {}},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.name);
    EXPECT_TRUE(one.chain->reads_together());
    for (const int threads : {1, 2}) {
      std::vector<std::int64_t> values = read_all(one.chain, 6, threads);
      if (!one.expected.empty()) {
        values.resize(one.expected.size());
        EXPECT_EQ(values, one.expected);
      }
    }
    for (const auto& source : one.sources) {
      EXPECT_EQ(source->unnamed(), 0);
      EXPECT_GT(std::ranges::max(source->groups()), 1u);
    }
  }
}

}  // namespace
}  // namespace shardwise
