#include "shardwise/loader/loader_options.h"

namespace shardwise {

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

}  // namespace shardwise
