#include "shardwise/tiers/detail/saved_tensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <stdexcept>

#include "testing/errors.h"
#include "testing/host_tensor.h"
#include "testing/temp_dir.h"

namespace shardwise::tiers_detail {
namespace {

namespace fs = std::filesystem;

class SavedTensorsTest : public testing::Test {
 protected:
  static bool pinned(const fs::path& directory) {
    return detail::is_pinned(*posix_file_system(), directory.parent_path(), {.step = 3});
  }
  std::vector<std::byte> read(const SavedTensors& saved, std::size_t tensor, const Box& box) const {
    std::vector<std::byte> out(num_bytes(box.shape(), size_bytes(saved.tensors()[tensor].dtype)));
    saved.read(tensor, box, out);
    return out;
  }

  // These are not in a checkpoint's order.
  const std::vector<HostTensor> tensors_{
      host_tensor("c", DType::f32, {40, 30}, "data=2", "data,-"),
      host_tensor("a", DType::bf16, {7}, "data=2", "-", Values::noise, 2),
      host_tensor("b", DType::i64, {}, "data=2", "", Values::noise, 3)};
  const TempDir dir_;
};

TEST_F(SavedTensorsTest, AreThoseOfTheSaveInTheOrderOfItsSources) {
  std::vector<TensorSource> sources = sources_of(tensors_);
  sources[0].name = "renamed";
  CheckpointManager manager(dir_ / "root", {.write = {.threads = 1}});
  SavedTensors saved(sources, posix_file_system());
  ASSERT_EQ(saved.tensors().size(), 3u);
  EXPECT_EQ(saved.tensors()[0].name, "renamed");
  EXPECT_EQ(saved.tensors()[1].name, "a");
  EXPECT_EQ(saved.tensors()[1].dtype, DType::bf16);
  EXPECT_EQ(saved.tensors()[2].shape, Shape{});

  manager.save(3, sources);
  saved.open([&] { return manager.latest()->step.directory; });
  saved.wait();
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    const Box whole = Box::whole(tensors_[t].spec.shape);
    EXPECT_EQ(read(saved, t, whole), *tensors_[t].data) << t;
  }
  const Box part({5, 7}, {25, 8});
  EXPECT_EQ(read(saved, 0, part), tensors_[0].part(part));
}

TEST_F(SavedTensorsTest, PinTheCheckpointAsLongAsTheyLive) {
  CheckpointManager manager(dir_ / "root", {.write = {.threads = 1}});
  const std::vector<TensorSource> sources = sources_of(tensors_);
  manager.save(3, sources);
  const fs::path directory = manager.latest()->step.directory;
  {
    SavedTensors saved(sources, posix_file_system());
    EXPECT_FALSE(pinned(directory));
    saved.open([&] { return directory; });
    EXPECT_TRUE(pinned(directory));
  }
  EXPECT_FALSE(pinned(directory));
}

TEST_F(SavedTensorsTest, ReadThrowsWhatTheSaveThrew) {
  const std::vector<TensorSource> sources = sources_of(tensors_);
  SavedTensors failed(sources, posix_file_system());
  failed.open([]() -> fs::path { throw Error(ErrorCode::io, "the disk is full"); });
  failed.wait();
  std::vector<std::byte> out(7 * 2);
  EXPECT_EQ(message_of(ErrorCode::io, [&] { failed.read(1, Box({0}, {7}), out); }),
            "the disk is full");
  SavedTensors gone(sources, posix_file_system());
  gone.open([&] { return dir_ / "root/step-00000003"; });
  message_of(ErrorCode::not_found, [&] { gone.read(1, Box({0}, {7}), out); });
}

TEST_F(SavedTensorsTest, WaitReturnsWhenTheSaveHasEnded) {
  const std::vector<TensorSource> sources = sources_of(tensors_);
  SavedTensors saved(sources, posix_file_system());
  std::promise<void> may_end;
  std::atomic<bool> ended{false};
  auto opening = std::async(std::launch::async, [&] {
    saved.open([&]() -> fs::path {
      may_end.get_future().wait();
      ended = true;
      throw std::runtime_error("no save");
    });
  });
  may_end.set_value();
  saved.wait();
  EXPECT_TRUE(ended);
  opening.get();
}

}  // namespace
}  // namespace shardwise::tiers_detail
