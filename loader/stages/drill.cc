#include "shardwise/loader/stages/drill.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <csignal>
#include <stdexcept>
#include <thread>
#include <utility>

#include "shardwise/loader/stages/detail/stage.h"
#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

using Kind = DrillFault::Kind;

constexpr std::array<std::string_view, 5> kKinds = {"corrupt", "io", "exception", "slow", "kill"};
constexpr std::chrono::milliseconds kSlow{100};

void go_wrong(const DrillFault& fault) {
  const auto what = [&] {
    return fmt::format("drill: record {}: {}, as asked for", fault.record,
                       kKinds[static_cast<std::size_t>(fault.kind)]);
  };
  switch (fault.kind) {
    case Kind::corrupt:
      throw Error(ErrorCode::corrupt, what());
    case Kind::io:
      throw Error(ErrorCode::io, what());
    case Kind::exception:
      throw std::runtime_error(what());
    case Kind::slow:
      std::this_thread::sleep_for(kSlow);
      break;
    case Kind::kill:
      std::raise(SIGKILL);
  }
}

class DrillStage final : public detail::OneSourceStage {
 public:
  DrillStage(std::shared_ptr<const Source> source, std::vector<DrillFault> faults)
      : OneSourceStage(std::move(source), "drill"), faults_(std::move(faults)) {
    for (const DrillFault& fault : faults_) {
      if (fault.record >= 0 && fault.record < size()) continue;
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("drill: there is no record {} among {}", fault.record, size()));
    }
    std::ranges::stable_sort(faults_, {}, &DrillFault::record);
  }

  void read(const Sample& sample, std::span<const FieldBox> boxes) const override {
    auto fault = std::ranges::lower_bound(faults_, sample.record, {}, &DrillFault::record);
    for (; fault != faults_.end() && fault->record == sample.record; ++fault) go_wrong(*fault);
    inner().read(sample, boxes);
  }

  std::uint64_t fingerprint() const override { return inner().fingerprint(); }
  std::string describe(std::int64_t samples) const override { return inner().describe(samples); }

 private:
  std::vector<DrillFault> faults_;  // by record
};

DrillFault parse_fault(std::string_view text) {
  const std::size_t colon = std::min(text.find(':'), text.size());
  const auto kind = std::ranges::find(kKinds, text.substr(0, colon));
  const std::string_view number = text.substr(std::min(colon + 1, text.size()));
  std::int64_t record = -1;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), record);
  if (kind == kKinds.end() || error != std::errc() || end != number.data() + number.size() ||
      record < 0) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("drill \"{}\": needed is KIND:RECORD, where the kind is corrupt, io, "
                            "exception, slow or kill",
                            text));
  }
  return {static_cast<Kind>(kind - kKinds.begin()), record};
}

}  // namespace

std::vector<DrillFault> parse_drill(std::string_view text) {
  std::vector<DrillFault> faults;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    faults.push_back(parse_fault(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return faults;
}

std::shared_ptr<const Source> drill(std::shared_ptr<const Source> source,
                                    std::vector<DrillFault> faults) {
  return std::make_shared<DrillStage>(std::move(source), std::move(faults));
}

}  // namespace shardwise
