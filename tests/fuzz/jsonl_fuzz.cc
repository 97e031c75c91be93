// Lines of JSON: refused with an Error, or read. The first byte says with what options.

#include <string_view>

#include "fuzz/source_fuzz.h"
#include "shardwise/loader/sources/detail/open_files.h"

namespace shardwise {
namespace {

JsonlOptions jsonl_options(unsigned how, std::size_t hold_bytes) {
  JsonlOptions options{.hold_bytes = hold_bytes};
  if ((how & 1) != 0) {
    options.fields.push_back({.name = "a", .dtype = DType::i16, .ragged = (how & 2) != 0});
  }
  if ((how & 4) != 0) {
    options.fields.push_back(
        {.name = "b", .dtype = DType::u8, .shape = Shape{4, 2}, .ragged = (how & 8) != 0});
  }
  if ((how & 16) != 0) options.fields.push_back({.name = "t", .dtype = DType::u8});
  if ((how & 32) != 0) options.fields.push_back({.name = "x"});
  return options;
}

}  // namespace
}  // namespace shardwise

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  shardwise::check_source({reinterpret_cast<const char*>(data) + 1, size - 1},
                          [&](auto file, std::size_t hold_bytes) {
                            return shardwise::detail::open_jsonl(
                                std::move(file), shardwise::jsonl_options(data[0], hold_bytes));
                          });
  return 0;
}
