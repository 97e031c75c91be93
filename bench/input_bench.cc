// How fast do batches reach the devices? Each case is compared with its limit in the same run;
// bench/rivals/input runs the same cases in other libraries.
//
//   input_bench FOLDER [--quick] [--only TEXT]
//
// FOLDER has the files that bench/rivals/input/data.py makes. One line of JSON per case: its name,
// the median of its windows, all windows, the unit and, if there is a limit, the median of the
// ratios to it. Windows of a case and of its limits take turns.

#include <fcntl.h>
#include <fmt/core.h>
#include <fmt/ranges.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "shardwise/loader/detail/order/shuffle.h"
#include "shardwise/loader/host_loader.h"
#include "shardwise/loader/loader.h"
#include "shardwise/loader/sources/arrays.h"
#include "shardwise/loader/sources/images.h"
#include "shardwise/loader/stages/pack.h"
#include "shardwise/runtime/stopwatch.h"

namespace {

using namespace shardwise;

constexpr std::int64_t kRows = 200'000, kRowBytes = 784, kRowsBatch = 1024;
constexpr std::int64_t kWindow = 1025, kTokenBatch = 64;
constexpr std::int64_t kForever = 1'000'000;  // epochs
constexpr std::uint64_t kSeed = 7;

struct Settings {
  std::filesystem::path folder;
  std::string only;
  int windows = 9;
  double seconds = 0.4;  ///< per window, about
};

/// Work that can be repeated: does some of it and returns how much.
using Work = std::function<double()>;

struct Case {
  std::string name, unit;
  Work work;
  std::vector<std::size_t> limits{};  ///< the cases before it that it is compared with
  std::vector<double> rates{};
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void print(const Case& of, const std::vector<Case>& all) {
  std::vector<std::string> ratios;
  ratios.reserve(of.limits.size());
  for (const std::size_t limit : of.limits) {
    std::vector<double> by_window;
    by_window.reserve(of.rates.size());
    for (std::size_t i = 0; i < of.rates.size(); ++i) {
      by_window.push_back(of.rates[i] / all[limit].rates[i]);
    }
    ratios.push_back(fmt::format(R"("{}":{:.4f})", all[limit].name, median(by_window)));
  }
  fmt::print(R"({{"case":"{}","unit":"{}","value":{:.6g},"windows":[{:.6g}],"of":{{{}}}}})"
             "\n",
             of.name, of.unit, median(of.rates), fmt::join(of.rates, ","), fmt::join(ratios, ","));
  std::fflush(stdout);
}

void run(std::vector<Case> cases, const Settings& settings) {
  for (Case& each : cases) each.work();  // pages, caches, kept parts of files
  for (int window = 0; window < settings.windows; ++window) {
    for (Case& each : cases) {
      const Stopwatch clock;
      double done = 0;
      do {
        done += each.work();
      } while (clock.seconds() < settings.seconds);
      each.rates.push_back(done / clock.seconds());
    }
  }
  for (const Case& each : cases) print(each, cases);
}

/// A file's bytes, mapped and touched.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path) : size_(std::filesystem::file_size(path)) {
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    void* const data = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE | MAP_POPULATE, file, 0);
    if (file >= 0) close(file);
    if (data == MAP_FAILED) throw std::runtime_error("cannot map " + path.string());
    data_ = static_cast<const std::byte*>(data);
  }
  ~MappedFile() { munmap(const_cast<std::byte*>(data_), size_); }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  std::size_t size_;
  const std::byte* data_ = nullptr;
};

/// Rows of a matrix in some order, batch after batch, into eight buffers that stay: the naive loop.
class Gather {
 public:
  struct Layout {
    std::int64_t row_bytes, stride_bytes, batch;
    std::int64_t columns;  ///< 2: rows are halved, as on data=4,model=2
  };

  Gather(const std::byte* data, std::vector<std::int64_t> order, const Layout& layout)
      : data_(data), order_(std::move(order)), layout_(layout) {
    const std::int64_t bytes = layout.batch * layout.row_bytes / 8;
    shards_.assign(8, std::vector<std::byte>(static_cast<std::size_t>(bytes)));
  }

  /// All full batches, the shards dealt out to threads. Returns the rows.
  double epoch(int threads) {
    std::vector<std::jthread> others;
    others.reserve(static_cast<std::size_t>(threads));
    for (int t = 1; t < threads; ++t) others.emplace_back([=, this] { part(t, threads); });
    part(0, threads);
    others.clear();
    return static_cast<double>(batches() * layout_.batch);
  }

 private:
  std::int64_t batches() const { return static_cast<std::int64_t>(order_.size()) / layout_.batch; }

  void part(int thread, int threads) {
    for (std::int64_t batch = 0; batch < batches(); ++batch) {
      for (int shard = thread * 8 / threads; shard < (thread + 1) * 8 / threads; ++shard) {
        fill(shard, batch);
      }
    }
  }

  void fill(int shard, std::int64_t batch) {
    const std::int64_t rows = layout_.batch * layout_.columns / 8;
    const auto bytes = static_cast<std::size_t>(layout_.row_bytes / layout_.columns);
    const std::int64_t first = batch * layout_.batch + shard / layout_.columns * rows;
    const std::byte* const from = data_ + static_cast<std::size_t>(shard % layout_.columns) * bytes;
    std::byte* to = shards_[static_cast<std::size_t>(shard)].data();
    for (std::int64_t row = first; row < first + rows; ++row, to += bytes) {
      std::memcpy(to, from + order_[static_cast<std::size_t>(row)] * layout_.stride_bytes, bytes);
    }
    asm volatile("" ::"r"(to) : "memory");
  }

  const std::byte* data_;
  std::vector<std::int64_t> order_;
  Layout layout_;
  std::vector<std::vector<std::byte>> shards_;
};

/// Batches that never end.
class Endless {
 public:
  Endless(const std::shared_ptr<const Source>& source, std::string_view mesh,
          const std::map<std::string, std::string, std::less<>>& specs,
          const LoaderOptions& options)
      : devices_(8, {.threads = 1}),
        loader_(devices_, source, place_fields(*source, Mesh::parse(mesh), specs), options,
                {.seed = kSeed}) {}

  /// Rows of some batches.
  double rows(int batches) {
    std::int64_t sum = 0;
    for (int i = 0; i < batches; ++i) sum += loader_.next()->valid_rows;
    return static_cast<double>(sum);
  }

 private:
  Devices devices_;
  Loader loader_;
};

std::vector<std::int64_t> shuffled_order(std::int64_t size) {
  const Shuffle shuffle(size, kSeed, 0);
  std::vector<std::int64_t> order(static_cast<std::size_t>(size));
  for (std::int64_t i = 0; i < size; ++i) order[static_cast<std::size_t>(i)] = shuffle.at(i);
  return order;
}

struct RowSource {
  std::string name;
  std::shared_ptr<const Source> source;
  bool with_labels;
};

std::vector<RowSource> row_sources(const Settings& settings, const MappedFile& npy) {
  const auto hdf5 = [&](const char* file) {
    return open_hdf5({settings.folder / file}, {.fields = {{"x", "/x"}, {"y", "/y"}}});
  };
  const auto header = npy.size() - static_cast<std::size_t>(kRows * kRowBytes);
  return {{"hdf5", hdf5("rows.h5"), false},
          {"hdf5 and labels", hdf5("rows.h5"), true},
          {"hdf5 chunked", hdf5("rows_chunked.h5"), false},
          {"memory",
           memory_source({"x", DType::u8, {kRowBytes}}, kRows,
                         {npy.data() + header, npy.data() + npy.size()}),
           false},
          {"idx", open_idx(settings.folder / "rows-idx2-ubyte", "x"), false},
          {"npy", open_npy(settings.folder / "rows.npy", "x"), false}};
}

/// Shuffled rows of 784 bytes on 8 devices.
void rows(const Settings& settings, const std::string& mesh, std::int64_t columns) {
  const MappedFile npy(settings.folder / "rows.npy");
  const std::byte* const data = npy.data() + npy.size() - kRows * kRowBytes;
  Gather gather(data, shuffled_order(kRows), {kRowBytes, kRowBytes, kRowsBatch, columns});
  std::vector<Case> cases;
  for (const int threads : {1, 2}) {
    cases.push_back({fmt::format("rows {}: memcpy gather, {} threads", mesh, threads), "rows/s",
                     [&gather, threads] { return gather.epoch(threads); }});
  }
  for (const RowSource& rows : row_sources(settings, npy)) {
    std::map<std::string, std::string, std::less<>> specs{
        {"x", columns > 1 ? "data,model" : "data,-"}};
    if (rows.with_labels) specs.emplace("y", "data");
    for (const int threads : {1, 2}) {
      const auto loader = std::make_shared<Endless>(
          rows.source, mesh, specs,
          LoaderOptions{.batch_size = kRowsBatch, .epochs = kForever, .threads = threads});
      cases.push_back({fmt::format("rows {}: {}, {} threads", mesh, rows.name, threads),
                       "rows/s",
                       [loader] { return loader->rows(195); },
                       {0, 1}});
    }
  }
  run(std::move(cases), settings);
}

/// Windows of tokens, one after the other.
void tokens(const Settings& settings) {
  const MappedFile file(settings.folder / "tokens.bin");
  const auto windows = (static_cast<std::int64_t>(file.size() / 2) - 1) / (kWindow - 1);
  std::vector<std::int64_t> order(static_cast<std::size_t>(windows));
  std::iota(order.begin(), order.end(), 0);
  std::vector<Case> cases;
  std::vector<std::shared_ptr<Gather>> gathers;
  const auto source =
      open_tokens(settings.folder / "tokens.bin", {.window = kWindow, .stride = kWindow - 1});
  for (const std::int64_t batch : {kTokenBatch, 8 * kTokenBatch}) {
    const auto gather = std::make_shared<Gather>(
        file.data(), order, Gather::Layout{kWindow * 2, (kWindow - 1) * 2, batch, 1});
    const std::size_t limit = cases.size();
    for (const int threads : {1, 2}) {
      cases.push_back({fmt::format("tokens {}: memcpy, {} threads", batch, threads), "tokens/s",
                       [gather, threads] { return gather->epoch(threads) * kWindow; }});
    }
    for (const int threads : {1, 2}) {
      const auto loader = std::make_shared<Endless>(
          source, "data=8", std::map<std::string, std::string, std::less<>>{{"tokens", "data,-"}},
          LoaderOptions{.batch_size = batch,
                        .epochs = kForever,
                        .order = RecordOrder::sequential,
                        .threads = threads});
      const auto batches = static_cast<int>(windows / batch);
      cases.push_back({fmt::format("tokens {}: raw file, {} threads", batch, threads),
                       "tokens/s",
                       [=] { return loader->rows(batches) * kWindow; },
                       {limit, limit + 1}});
    }
  }
  run(std::move(cases), settings);
}

/// 256x256 JPEGs, read, decoded and scaled.
void images(const Settings& settings) {
  const auto source = open_image_folder(settings.folder / "images", {.height = 224, .width = 224});
  const auto loader = std::make_shared<Endless>(
      source, "data=8",
      std::map<std::string, std::string, std::less<>>{{"image", "data,-,-,-"}, {"label", "data"}},
      LoaderOptions{.batch_size = 64, .epochs = kForever, .threads = 2});
  const auto batches = static_cast<int>(source->size() / 64);
  run({{"images: jpeg folder to 224, 2 threads", "images/s",
        [=] { return loader->rows(std::min(batches, 8)); }}},
      settings);
}

/// Documents of log-normal lengths; their tokens are whatever is in memory.
class Documents final : public Source {
 public:
  explicit Documents(std::int64_t count) : memory_(kLongest) {
    std::mt19937_64 random(kSeed);
    std::lognormal_distribution<double> length(6, 1.2);
    lengths_.reserve(static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; ++i) {
      const double drawn = std::min(length(random), static_cast<double>(kLongest));
      lengths_.push_back(1 + static_cast<std::int64_t>(drawn) % kLongest);
    }
  }

  std::int64_t size() const override { return static_cast<std::int64_t>(lengths_.size()); }
  std::span<const Field> fields() const override { return fields_; }
  void read(const Sample&, std::span<const FieldBox> boxes) const override {
    for (const FieldBox& box : boxes) {
      const auto begin = static_cast<std::size_t>(box.to.box.begin(0));
      const auto end = static_cast<std::size_t>(box.to.box.end(0));
      std::memcpy(box.to.data, memory_.data() + begin, (end - begin) * sizeof(std::uint16_t));
    }
  }
  std::int64_t length(const Sample& sample, std::size_t) const override {
    return lengths_[static_cast<std::size_t>(sample.record)];
  }

  double tokens() const {
    return static_cast<double>(std::accumulate(lengths_.begin(), lengths_.end(), std::int64_t{0}));
  }

 private:
  static constexpr std::int64_t kLongest = 32768;
  std::vector<Field> fields_{{"text", DType::u16, {kLongest}, true}};
  std::vector<std::int64_t> lengths_;
  std::vector<std::uint16_t> memory_;
};

void packs(const Settings& settings) {
  constexpr std::int64_t kTokens = 1024, kDocuments = 200'000;
  const auto documents = std::make_shared<const Documents>(kDocuments);
  const Stopwatch planning;
  const auto packed = pack(documents, {.field = "text", .window = kTokens});
  const double planned = kDocuments / planning.seconds();
  const double fill =
      documents->tokens() / static_cast<double>(packed->size()) / static_cast<double>(kTokens);
  const std::map<std::string, std::string, std::less<>> specs{
      {"text", "data,-"}, {"text_segments", "data,-"}, {"text_positions", "data,-"}};
  std::vector<Case> cases{{"packs: fill of 1,024", "of 1", {}, {}, {fill}},
                          {"packs: documents planned", "documents/s", {}, {}, {planned}}};
  for (const Case& each : cases) print(each, cases);
  cases.clear();
  for (const RecordOrder order : {RecordOrder::sequential, RecordOrder::shuffled}) {
    const auto loader = std::make_shared<Endless>(
        packed, "data=8", specs,
        LoaderOptions{.batch_size = 64, .epochs = kForever, .order = order, .threads = 2});
    cases.push_back({fmt::format("packs: {}, 2 threads", name(order)), "packs/s",
                     [=] { return loader->rows(64); }});
  }
  run(std::move(cases), settings);
}

/// Nanoseconds of a call, for each number from 0 on, again and again.
template <class Call>
double call_ns(std::int64_t size, Call&& call) {
  constexpr std::int64_t kCalls = 100'000;
  std::int64_t sum = 0, number = 0;
  const Stopwatch clock;
  for (std::int64_t i = 0; i < kCalls; ++i) {
    sum += call(number);
    number = number + 1 < size ? number + 1 : 0;
  }
  asm volatile("" ::"r"(sum) : "memory");
  return clock.seconds() / static_cast<double>(kCalls) * 1e9;
}

/// Takes the slowest size: just over a power of two the cipher walks furthest.
void cipher(const Settings& settings) {
  std::vector<Case> cases{{"cipher: record of a number", "ns", {}},
                          {"cipher: number of a record", "ns", {}}};
  for (int window = 0; window < settings.windows; ++window) {
    double at = 0, of = 0;
    for (int bits = 4; bits < 62; bits += 3) {
      for (const std::int64_t size : {(std::int64_t{1} << bits) + 1, std::int64_t{3} << bits}) {
        const Shuffle shuffle(size, kSeed, 1);
        at = std::max(at, call_ns(size, [&](std::int64_t i) { return shuffle.at(i); }));
        of = std::max(of, call_ns(size, [&](std::int64_t i) { return shuffle.position_of(i); }));
      }
    }
    cases[0].rates.push_back(at);
    cases[1].rates.push_back(of);
  }
  for (const Case& each : cases) print(each, cases);
}

/// A billion records of 8 bytes that say their number.
class Numbers final : public Source {
 public:
  std::int64_t size() const override { return 1'000'000'000; }
  std::span<const Field> fields() const override { return fields_; }
  void read(const Sample& sample, std::span<const FieldBox> boxes) const override {
    for (const FieldBox& box : boxes)
      std::memcpy(box.to.data, &sample.record, sizeof sample.record);
  }

 private:
  std::vector<Field> fields_{{"number", DType::i64, {}}};
};

void resume(const Settings& settings) {
  const auto source = std::make_shared<const Numbers>();
  Devices devices(8, {.threads = 1});
  const auto placements = place_fields(*source, Mesh::parse("data=8"), {{"number", "data"}});
  const LoaderOptions options{.batch_size = 1000, .threads = 2};
  const LoaderState state =
      Loader(devices, source, placements, options, {.seed = kSeed, .next_batch = 900'000}).state();
  std::vector<double> restored, first;
  for (int window = 0; window < settings.windows; ++window) {
    const Stopwatch clock;
    Loader loader(devices, source, placements, options, state);
    restored.push_back(clock.seconds() * 1e3);
    loader.next();
    first.push_back(clock.seconds() * 1e3);
  }
  const std::vector<Case> cases{{"resume at 9e8 of 1e9: restored", "ms", {}, {}, restored},
                                {"resume at 9e8 of 1e9: first batch", "ms", {}, {}, first}};
  for (const Case& each : cases) print(each, cases);
}

}  // namespace

int main(int argc, char** argv) try {
  Settings settings;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--quick") {
      settings.windows = 5;
      settings.seconds = 0.1;
    } else if (argument == "--only" && i + 1 < argc) {
      settings.only = argv[++i];
    } else {
      settings.folder = argument;
    }
  }
  if (settings.folder.empty()) {
    fmt::print(stderr, "usage: input_bench FOLDER [--quick] [--only TEXT]\n");
    return 2;
  }
  const std::vector<std::pair<std::string, std::function<void()>>> groups{
      {"rows data=8", [&] { rows(settings, "data=8", 1); }},
      {"rows data=4,model=2", [&] { rows(settings, "data=4,model=2", 2); }},
      {"tokens", [&] { tokens(settings); }},
      {"images", [&] { images(settings); }},
      {"packs", [&] { packs(settings); }},
      {"cipher", [&] { cipher(settings); }},
      {"resume", [&] { resume(settings); }}};
  for (const auto& [name, group] : groups) {
    if (name.find(settings.only) != std::string::npos) group();
  }
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "input_bench: {}\n", error.what());
  return 1;
}
