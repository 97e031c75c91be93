#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>

#include "shardwise/jobs/manager.h"
#include "shardwise/storage/file.h"
#include "testing/host_tensor.h"
#include "testing/temp_dir.h"

namespace shardwise {

/// A step of a root, and a copy of it.
class StepAndCopy : public testing::Test {
 protected:
  StepAndCopy() {
    const HostTensor tensor = host_tensor("x", DType::f32, {1000}, "1", "-", Values::noise);
    CheckpointManager(dir_ / "root").save(1, {tensor.source()}, {.codec = Codec::none});
    std::filesystem::copy(dir_ / "root", dir_ / "copy", std::filesystem::copy_options::recursive);
  }

  const TempDir dir_;
  const std::filesystem::path step_ = dir_ / "root/step-00000001";
  const std::filesystem::path copy_ = dir_ / "copy/step-00000001";
  const std::shared_ptr<FileSystem> files_ = posix_file_system();
};

}  // namespace shardwise
