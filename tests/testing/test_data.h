#pragma once

#include <filesystem>
#include <string_view>

namespace shardwise {

/// A file of tests/data, by its path there.
std::filesystem::path test_data(std::string_view path);

}  // namespace shardwise
