// TFRecord files: refused with an Error, or read. By its first byte the input is a file as it is,
// or the content of a file's records, with right checksums, so that parsing gets past them.

#include <string>
#include <string_view>

#include "fuzz/source_fuzz.h"
#include "shardwise/loader/sources/detail/open_files.h"
#include "shardwise/loader/sources/detail/tf_frames.h"

namespace shardwise {
namespace {

template <class T>
void append(T value, std::string& out) {
  for (std::size_t i = 0; i < sizeof(T); ++i) out += static_cast<char>(value >> (8 * i) & 0xff);
}

std::string framed(std::string_view data) {
  std::string frame;
  append<std::uint64_t>(data.size(), frame);
  append(detail::masked_crc(std::as_bytes(std::span(frame))), frame);
  frame += data;
  append(detail::masked_crc(std::as_bytes(std::span(data))), frame);
  return frame;
}

TfrecordOptions tfrecord_options(unsigned how, std::size_t hold_bytes) {
  TfrecordOptions options{.hold_bytes = hold_bytes};
  if ((how & 2) != 0) options.features.push_back({"i", DType::i32, {0}, true});
  if ((how & 4) != 0) options.features.push_back({"f", DType::f16, {2}});
  if ((how & 8) != 0) options.features.push_back({"b", DType::u8, {4}, true});
  if ((how & 16) != 0) options.features.push_back({"i2", DType::boolean});
  return options;
}

}  // namespace
}  // namespace shardwise

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  std::string content(rest);
  if ((data[0] & 1) != 0) {
    content.clear();
    const std::size_t half = std::min(rest.find("\xff\xfe\xff"), rest.size());
    content += shardwise::framed(rest.substr(0, half));
    content += shardwise::framed(rest.substr(std::min(half + 3, rest.size())));
  }
  shardwise::check_source(content, [&](auto file, std::size_t hold_bytes) {
    return shardwise::detail::open_tfrecord(std::move(file),
                                            shardwise::tfrecord_options(data[0], hold_bytes));
  });
  return 0;
}
