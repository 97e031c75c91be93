#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "shardwise/loader/host_loader.h"

namespace gpt {

/// Batches without an end of the fields "tokens" and "targets", i32 [batch, context] each. Of a
/// .safetensors: its tensors x0 and y0, x1 and y1, ... in turn. Of any other file: its bytes, in
/// shuffled windows at any place; targets are one byte further on. They are in host memory, so that
/// the peak of a device's memory is the step's alone. Throws as read_all(), open_tokens() and
/// HostLoader, and invalid_argument if the file does not fit the sizes.
std::unique_ptr<shardwise::HostLoader> read_tokens(const std::filesystem::path& path,
                                                   std::int64_t batch, std::int64_t context,
                                                   const shardwise::LoaderState& state = {});

}  // namespace gpt
