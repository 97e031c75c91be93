#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "shardwise/loader/host_loader.h"

namespace gpt {

/// Endless batches of the fields "tokens" and "targets", i32 [batch, context] each. A .safetensors
/// file gives its tensors x0 and y0, x1 and y1, ... in turn; any other file gives its bytes, in
/// shuffled windows at any place, with targets one byte further on. Batches are in host memory, so
/// that the peak of a device's memory is the step's alone. Throws as read_all(), open_tokens() and
/// HostLoader, and invalid_argument if the file does not fit the sizes.
std::unique_ptr<shardwise::HostLoader> read_tokens(const std::filesystem::path& path,
                                                   std::int64_t batch, std::int64_t context,
                                                   const shardwise::LoaderState& state = {});

}  // namespace gpt
