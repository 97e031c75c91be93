// Messages between the processes of a save: any bytes whose hash is right are taken or refused
// with an Error; taken ones are sent again as the same, and lists that are taken make a manifest
// or are refused. And what processes of other machines leave in a root: names and leases are not
// ours, or say what we would write.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "fuzz/require.h"
#include "shardwise/checkpoint/detail/format/step_name.h"
#include "shardwise/checkpoint/detail/record/packer.h"
#include "shardwise/checkpoint/detail/record/record.h"
#include "shardwise/checkpoint/detail/root/marks/lease.h"
#include "shardwise/checkpoint/detail/root/names.h"
#include "shardwise/checkpoint/detail/write/commit.h"
#include "shardwise/jobs/detail/save/messages.h"
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
    detail::checked_manifest(manifest);
  } catch (const Error& e) {
    const std::string_view problem = e.what();
    require(problem.find('\n') == std::string_view::npos, "publish", problem);
  }
}

void check_left(std::string_view text) {
  using detail::HiddenKind;
  if (const auto step = detail::parse_step_name(text)) {
    require(detail::to_string(*step) == text, "step name", text);
  }
  if (const auto hidden = detail::parse_hidden_name(text)) {
    const std::string& stem = hidden->stem;
    require(text.find(stem) != std::string_view::npos, "stem", text);
    if (hidden->kind == HiddenKind::attempt) {
      require(detail::attempt_name(stem) == text, "attempt", text);
    } else if (hidden->kind == HiddenKind::lease) {
      require(detail::lease_name(stem) == text, "lease", text);
    } else if (hidden->kind == HiddenKind::unfinished_lease) {
      require(detail::unfinished_lease_name(stem) == text, "unfinished lease", text);
    } else if (hidden->kind == HiddenKind::pin) {
      require(detail::parse_step_name(stem).has_value(), "pin", text);
    }
  }
  if (const auto owner = detail::parse_lease(text)) {
    const std::string printed = detail::print_lease(*owner);
    const auto again = detail::parse_lease(printed);
    require(again && detail::print_lease(*again) == printed, "lease's text", text);
  }
}

}  // namespace
}  // namespace shardwise

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shardwise;
  const auto bytes = std::as_bytes(std::span(data, size));
  const Bytes message = detail::sealed(Bytes(bytes.begin(), bytes.end()));
  check("head", message, [](const Bytes& m) { return detail::decode_head(m); });
  check("costs", message, [](const Bytes& m) { return detail::decode_costs(m); });
  check("list", message, [](const Bytes& m) { return detail::decode_list(m); });
  check("notice", message, [](const Bytes& m) { return jobs_detail::decode_notice(m); });
  check("outcome", message, [](const Bytes& m) { return jobs_detail::decode_outcome(m, 16); });
  publish(message);
  check_left({reinterpret_cast<const char*>(data), size});
  try {
    static_cast<void>(jobs_detail::decode_latest(message, "root"));
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
