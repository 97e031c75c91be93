// Tables: refused with an Error, or read. The first byte says with what options.

#include <string_view>

#include "fuzz/source_fuzz.h"
#include "shardwise/loader/sources/detail/open_files.h"

namespace shardwise {
namespace {

CsvOptions csv_options(unsigned how, std::size_t hold_bytes) {
  CsvOptions options{.delimiter = (how & 1) != 0 ? ';' : ',', .header = (how & 2) == 0};
  options.hold_bytes = hold_bytes;
  if ((how & 4) != 0) options.fields.push_back({.name = "a", .dtype = DType::i16});
  if ((how & 8) != 0) options.fields.push_back({.name = "a t", .text = true});
  if ((how & 16) != 0) {
    options.fields.push_back({.name = "f", .dtype = DType::bf16, .columns = {"a", "b"}});
  }
  if ((how & 32) != 0) options.fields.push_back({.name = "0", .dtype = DType::boolean});
  return options;
}

}  // namespace
}  // namespace shardwise

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  shardwise::check_source({reinterpret_cast<const char*>(data) + 1, size - 1},
                          [&](auto file, std::size_t hold_bytes) {
                            return shardwise::detail::open_csv(
                                std::move(file), shardwise::csv_options(data[0], hold_bytes));
                          });
  return 0;
}
