#include "shardwise/checkpoint/detail/write/host_snapshot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <latch>
#include <stdexcept>

#include "shardwise/checkpoint/reader.h"
#include "shardwise/jobs/manager.h"
#include "testing/errors.h"
#include "testing/hooked_file_system.h"
#include "testing/host_tensor.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

// Tensors in memory that belongs to the test, which may change it.
class Host {
 public:
  // With one that ends at no border, one of one element and one of none.
  explicit Host(std::int64_t rows = 90) {
    add("w", DType::f32, {rows, 2050}, "data=4,model=2", "data,model");
    add("v", DType::u8, {33, 5}, "data=4,model=2", "model,-");
    add("s", DType::i64, {}, "data=4,model=2", "");
    add("e", DType::f64, {0, 7}, "data=4,model=2", "-,-");
    add("b", DType::bf16, {30, 1000}, "data=4,model=2", "-,data");
  }

  void fill(std::uint64_t seed) {
    for (std::size_t i = 0; i < specs_.size(); ++i) bytes_[i] = values(i, seed);
  }

  std::vector<TensorSource> sources() const {
    std::vector<TensorSource> sources;
    for (std::size_t i = 0; i < specs_.size(); ++i) {
      sources.push_back(host_source(names_[i], specs_[i], bytes_[i]));
    }
    return sources;
  }

  std::size_t size_bytes() const {
    std::size_t sum = 0;
    for (const auto& bytes : bytes_) sum += bytes.size();
    return sum;
  }

  void expect_saved(const std::filesystem::path& directory, std::uint64_t seed) const {
    const CheckpointReader reader(directory);
    for (std::size_t i = 0; i < specs_.size(); ++i) {
      std::vector<std::byte> found(bytes_[i].size());
      reader.read(names_[i], Box::whole(specs_[i].shape), found);
      EXPECT_TRUE(found == values(i, seed)) << names_[i];
    }
  }

 private:
  void add(const char* name, DType dtype, const Shape& shape, const char* mesh, const char* spec) {
    names_.emplace_back(name);
    specs_.push_back({dtype, shape, Sharding(Mesh::parse(mesh), PartitionSpec::parse(spec))});
    bytes_.push_back(values(specs_.size() - 1, 0));
  }

  std::vector<std::byte> values(std::size_t i, std::uint64_t seed) const {
    return test_values(specs_[i].dtype, specs_[i].shape, Values::noise, seed + 100 * i);
  }

  std::vector<std::string> names_;
  std::vector<ArraySpec> specs_;
  std::vector<std::vector<std::byte>> bytes_;
};

// The memory of the elements; empty without elements.
std::span<const std::byte> memory_of(const TensorSource& source) {
  const TensorInfo& info = source.reader->tensors()[source.tensor];
  const Box whole = Box::whole(info.shape);
  if (whole.empty()) return {};
  return {source.reader->contiguous(source.tensor, whole),
          num_bytes(info.shape, size_bytes(info.dtype))};
}

TEST(HostSource, NeedsExactlyTheTensorsBytes) {
  const Sharding sharding(Mesh::parse("2"), PartitionSpec::parse("0,-"));
  const std::vector<std::byte> bytes(47);
  const std::string message = message_of(ErrorCode::invalid_argument, [&] {
    host_source("w", {DType::f32, {4, 3}, sharding}, bytes);
  });
  for (const char* part : {"tensor \"w\"", "47", "f32 [4, 3]", "48"}) {
    EXPECT_THAT(message, HasSubstr(part));
  }
}

TEST(HostSource, IsSavedAsItLies) {
  const TempDir dir;
  Host host;
  host.fill(1);
  CheckpointManager manager(dir.path());
  host.expect_saved(manager.save(1, host.sources()).directory, 1);
}

TEST(HostSource, MayBeOverwrittenAsSoonAsSaveAsyncReturns) {
  const TempDir dir;
  std::latch overwritten(1);
  const auto files = std::make_shared<HookedFileSystem>(
      [&](std::string_view operation, const std::filesystem::path&) {
        if (operation == "create") overwritten.wait();  // before a save asks for the first value
      });
  Host host;
  host.fill(1);
  CheckpointManager manager(dir.path(), {.collect_garbage = false, .file_system = files});
  const PendingSave pending = manager.save_async(1, host.sources());
  host.fill(2);
  overwritten.count_down();
  host.expect_saved(pending.wait().directory, 1);
}

TEST(HostSource, SavesOneBehindTheOtherUseTheSameMemoryInTurn) {
  const TempDir dir;
  Host host;
  CheckpointManager manager(dir.path(), {.write = {.threads = 3}});
  for (std::int64_t step = 1; step <= 4; ++step) {
    host.fill(static_cast<std::uint64_t>(step));
    manager.save_async(step, host.sources());
  }
  manager.close();
  for (std::int64_t step = 1; step <= 4; ++step) {
    host.expect_saved(manager.step(step).directory, static_cast<std::uint64_t>(step));
  }
}

TEST(HostSource, AFailedSaveLeavesNothingAndTheNextHoldsItsOwnValues) {
  const TempDir dir;
  Host host;
  host.fill(1);
  CheckpointManager manager(dir.path());
  std::vector<TensorSource> with_broken = host.sources();
  with_broken.push_back(callback_tensor(
      "broken", {DType::f32, {5}, Sharding(Mesh::parse("1"), PartitionSpec::parse("-"))},
      [](const Box&, std::span<std::byte>) { throw std::domain_error("broken"); }));
  manager.save_async(1, with_broken);
  host.fill(2);
  EXPECT_THROW(manager.save_async(2, host.sources()), std::domain_error);
  EXPECT_THAT(manager.steps(), IsEmpty()) << "the save that told of it has not begun";

  const PendingSave pending = manager.save_async(3, host.sources());
  host.fill(3);
  host.expect_saved(pending.wait().directory, 2);
  EXPECT_THROW(manager.save_async(3, host.sources()), Error) << "already there";
  manager.close();
  host.expect_saved(manager.step(3).directory, 2);
}

// A save can write from pages. The size of the tensors before does not count.
TEST(HostSnapshot, CopiesOf64KiBAndMoreBeginOnPages) {
  const Sharding whole = Sharding::replicated(Mesh::line(1), 1);
  const std::size_t sizes[] = {100, 65'536, 65'535, 200'001, 1, 70'000};
  const std::vector<std::byte> bytes(200'001, std::byte{3});
  std::vector<TensorSource> sources;
  for (const std::size_t size : sizes) {
    sources.push_back(host_source(std::to_string(size),
                                  {DType::u8, {static_cast<std::int64_t>(size)}, whole},
                                  std::span(bytes).first(size)));
  }
  detail::HostSnapshot snapshot;
  snapshot.take(sources, Executor(2));
  for (const TensorSource& source : sources) {
    const std::span<const std::byte> copy = memory_of(source);
    const std::size_t alignment = copy.size() < 65'536 ? 64 : 4096;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(copy.data()) % alignment, 0u) << source.name;
    EXPECT_TRUE(std::ranges::all_of(copy, [](std::byte b) { return b == std::byte{3}; }));
  }
}

TEST(HostSnapshot, CopiesHostSourcesAloneAndKeepsItsMemory) {
  const Executor executor(2);
  const Host host(2100);  // 17 MiB: more than one worker copies at once
  std::vector<TensorSource> sources = host.sources();
  const HostTensor shared = host_tensor("x", DType::f32, {100, 100}, "1", "-,-");
  sources.insert(sources.begin() + 1, shared.source());
  const std::vector<TensorSource> before = sources;

  detail::HostSnapshot snapshot;
  snapshot.take(sources, executor);
  EXPECT_GE(snapshot.held_bytes(), host.size_bytes());
  EXPECT_LT(snapshot.held_bytes(), host.size_bytes() + 64 * sources.size());
  ASSERT_EQ(sources.size(), before.size());
  for (std::size_t i = 0; i < sources.size(); ++i) {
    EXPECT_EQ(sources[i].name, before[i].name);
    if (i == 1) {
      EXPECT_EQ(sources[i].reader, before[i].reader);
      continue;
    }
    EXPECT_TRUE(std::ranges::equal(memory_of(sources[i]), memory_of(before[i])));
    EXPECT_TRUE(memory_of(sources[i]).empty() || sources[i].reader != before[i].reader);
    EXPECT_TRUE(memory_of(sources[i]).empty() ||
                memory_of(sources[i]).data() != memory_of(before[i]).data());
  }

  const std::byte* const place = memory_of(sources[0]).data();
  const std::size_t held = snapshot.held_bytes();
  std::vector<TensorSource> fewer = host.sources();
  fewer.pop_back();
  snapshot.take(fewer, executor);
  EXPECT_EQ(memory_of(fewer[0]).data(), place);
  EXPECT_EQ(snapshot.held_bytes(), held);
}

}  // namespace
}  // namespace shardwise
