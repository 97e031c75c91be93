// What the processes of a save tell each other: any bytes whose hash is right are taken or refused
// with an Error; what is taken is sent again as the same, and lists that are taken make a manifest
// or are refused.

#include <cstddef>
#include <cstdint>
#include <string>

#include "fuzz/require.h"
#include "shardwise/checkpoint/detail/together/messages.h"
#include "shardwise/checkpoint/detail/together/packer.h"
#include "shardwise/checkpoint/detail/together/record.h"
#include "shardwise/checkpoint/detail/write/commit.h"
#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

template <class Decode>
void check(const char* what, const Bytes& message, const Decode& decode) {
  try {
    const auto value = decode(message);
    require(encode(decode(encode(value))) == encode(value), what, "sent again");
  } catch (const Error& e) {
    const std::string_view problem = e.what();
    require(problem.find('\n') == std::string_view::npos, what, problem);
  }
}

// All writers say the same.
void publish(const Bytes& list) {
  try {
    detail::TensorList tensors = detail::decode_list(list);
    if (tensors.writers.num_writers() > 100) return;
    std::vector<detail::RecordHead> heads;
    for (std::int64_t writer = 0; writer < tensors.writers.num_writers(); ++writer) {
      detail::RecordHead& head = heads.emplace_back();
      head.list = detail::hash_of(list);
      head.first_writer = writer;
      head.files.resize(1);
    }
    for (const detail::TensorEntry& tensor : tensors.tensors) {
      heads.front().logical_bytes += num_bytes(tensor.shape, size_bytes(tensor.dtype));
    }
    std::vector<detail::NumberedList> lists;
    lists.push_back({0, std::move(tensors)});
    auto [manifest, stats] = detail::merge(heads, std::move(lists), "writer");
    manifest.id = std::string(32, '0');
    detail::checked_manifest(manifest, {});
  } catch (const Error& e) {
    const std::string_view problem = e.what();
    require(problem.find('\n') == std::string_view::npos, "publish", problem);
  }
}

}  // namespace
}  // namespace shardwise

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shardwise;
  const auto bytes = std::as_bytes(std::span(data, size));
  const Bytes message = detail::sealed(Bytes(bytes.begin(), bytes.end()));
  check("head", message, [](const Bytes& m) { return detail::decode_head(m); });
  check("list", message, [](const Bytes& m) { return detail::decode_list(m); });
  check("notice", message, [](const Bytes& m) { return detail::decode_notice(m); });
  check("outcome", message, [](const Bytes& m) { return detail::decode_outcome(m, 16); });
  check("question", message, [](const Bytes& m) { return detail::decode_question(m); });
  publish(message);
  try {
    static_cast<void>(detail::decode_latest(message, "root"));
  } catch (const Error&) {
    // Refused.
  }
  try {
    static_cast<void>(detail::split(Bytes(bytes.begin(), bytes.end())));
  } catch (const Error&) {
    // Refused.
  }
  return 0;
}
