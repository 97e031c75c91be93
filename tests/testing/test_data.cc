#include "testing/test_data.h"

namespace shardwise {

std::filesystem::path test_data(std::string_view path) {
  return std::filesystem::path(SHARDWISE_TEST_DATA) / path;
}

}  // namespace shardwise
