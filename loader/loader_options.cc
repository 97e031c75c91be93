#include "shardwise/loader/loader_options.h"

#include <fmt/format.h>

#include <array>
#include <string>

#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

template <class Choice, std::size_t kCount>
Choice chosen(const char* option, std::string_view text,
              const std::array<Choice, kCount>& choices) {
  std::string names;
  for (const Choice choice : choices) {
    if (name(choice) == text) return choice;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", name(choice));
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("loader: {} is \"{}\", needed is one of {}", option, text, names));
}

}  // namespace

std::string_view name(LastBatch last_batch) {
  switch (last_batch) {
    case LastBatch::drop:
      return "drop";
    case LastBatch::pad:
      return "pad";
    case LastBatch::wrap:
      return "wrap";
  }
  return "unknown";
}

std::string_view name(RecordOrder order) {
  switch (order) {
    case RecordOrder::sequential:
      return "sequential";
    case RecordOrder::shuffled:
      return "shuffled";
  }
  return "unknown";
}

std::string_view name(BadRecords bad_records) {
  switch (bad_records) {
    case BadRecords::fail:
      return "fail";
    case BadRecords::substitute:
      return "substitute";
    case BadRecords::mask:
      return "mask";
  }
  return "unknown";
}

LastBatch parse_last_batch(std::string_view text) {
  return chosen("last_batch", text, std::array{LastBatch::drop, LastBatch::pad, LastBatch::wrap});
}

RecordOrder parse_record_order(std::string_view text) {
  return chosen("order", text, std::array{RecordOrder::sequential, RecordOrder::shuffled});
}

BadRecords parse_bad_records(std::string_view text) {
  return chosen("bad_records", text,
                std::array{BadRecords::fail, BadRecords::substitute, BadRecords::mask});
}

}  // namespace shardwise
