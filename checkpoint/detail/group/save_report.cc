#include "shardwise/checkpoint/detail/group/save_report.h"

#include <cstring>

#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

// Appends numbers and texts, all processes of a job having the same byte order.
class Packer {
 public:
  void number(std::uint64_t value) {
    const std::size_t at = bytes_.size();
    bytes_.resize(at + sizeof value);
    std::memcpy(bytes_.data() + at, &value, sizeof value);
  }
  void number(std::int64_t value) { number(static_cast<std::uint64_t>(value)); }
  void hash(const Hash128& hash) {
    number(hash.high);
    number(hash.low);
  }
  void text(std::string_view text) {
    number(std::uint64_t{text.size()});
    const auto bytes = std::as_bytes(std::span(text));
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  Bytes take() { return std::move(bytes_); }

 private:
  Bytes bytes_;
};

class Unpacker {
 public:
  explicit Unpacker(std::span<const std::byte> bytes) : rest_(bytes) {}

  bool empty() const { return rest_.empty(); }
  std::uint64_t number() {
    std::uint64_t value = 0;
    std::memcpy(&value, part(sizeof value).data(), sizeof value);
    return value;
  }
  std::int64_t integer() { return static_cast<std::int64_t>(number()); }
  Hash128 hash() {
    const std::uint64_t high = number();
    return {.high = high, .low = number()};
  }
  std::string text() {
    const auto bytes = part(number());
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

 private:
  std::span<const std::byte> part(std::uint64_t size) {
    if (rest_.size() < size) {
      throw Error(
          ErrorCode::invalid_argument,
          "read a message of a save: it is cut off; all processes must run the same version "
          "of shardwise");
    }
    const auto part = rest_.first(size);
    rest_ = rest_.subspan(size);
    return part;
  }

  std::span<const std::byte> rest_;
};

}  // namespace

Bytes encode(const AttemptNotice& notice) {
  Packer packer;
  packer.number(notice.step);
  packer.text(notice.id);
  packer.text(notice.directory);
  packer.number(std::uint64_t{notice.is_reused ? 1u : 0u});
  return packer.take();
}

AttemptNotice decode_notice(std::span<const std::byte> bytes) {
  Unpacker unpacker(bytes);
  AttemptNotice notice;
  notice.step = unpacker.integer();
  notice.id = unpacker.text();
  notice.directory = unpacker.text();
  notice.is_reused = unpacker.number() != 0;
  return notice;
}

Bytes encode(const SaveReport& report) {
  Packer packer;
  packer.hash(report.tensors);
  packer.number(report.logical_bytes);
  packer.number(report.stored_bytes);
  packer.number(report.chunks);
  for (const FileEntry& file : report.files) {
    packer.number(file.bytes);
    packer.number(file.data_end);
    packer.hash(file.description_hash);
  }
  return packer.take();
}

SaveReport decode_report(std::span<const std::byte> bytes) {
  Unpacker unpacker(bytes);
  SaveReport report;
  report.tensors = unpacker.hash();
  report.logical_bytes = unpacker.number();
  report.stored_bytes = unpacker.number();
  report.chunks = unpacker.integer();
  while (!unpacker.empty()) {
    FileEntry& file = report.files.emplace_back();
    file.bytes = unpacker.number();
    file.data_end = unpacker.number();
    file.description_hash = unpacker.hash();
  }
  return report;
}

Bytes encode(const SaveOutcome& outcome) {
  Packer packer;
  packer.number(std::uint64_t{outcome.lists_wanted.size()});
  for (const int rank : outcome.lists_wanted) packer.number(std::int64_t{rank});
  const SaveStats& stats = outcome.stats;
  packer.text(stats.directory.filename().string());
  packer.number(std::uint64_t{stats.logical_bytes});
  packer.number(std::uint64_t{stats.stored_bytes});
  packer.number(std::uint64_t{stats.file_bytes});
  packer.number(stats.chunks);
  return packer.take();
}

SaveOutcome decode_outcome(std::span<const std::byte> bytes) {
  Unpacker unpacker(bytes);
  SaveOutcome outcome;
  for (std::uint64_t left = unpacker.number(); left > 0; --left) {
    outcome.lists_wanted.push_back(static_cast<int>(unpacker.integer()));
  }
  outcome.stats.directory = unpacker.text();
  outcome.stats.logical_bytes = unpacker.number();
  outcome.stats.stored_bytes = unpacker.number();
  outcome.stats.file_bytes = unpacker.number();
  outcome.stats.chunks = unpacker.integer();
  return outcome;
}

Bytes encode(const std::optional<LatestStep>& latest, const std::string& id) {
  Packer packer;
  packer.text(id);
  packer.number(std::uint64_t{latest ? 1u : 0u});
  if (!latest) return packer.take();
  packer.number(latest->step.step);
  packer.number(latest->step.generation);
  packer.text(latest->step.directory.filename().string());
  for (const RejectedStep& step : latest->rejected) {
    packer.text(step.directory.filename().string());
    packer.text(step.reason);
  }
  return packer.take();
}

std::pair<std::optional<LatestStep>, std::string> decode_latest(std::span<const std::byte> bytes,
                                                                const std::filesystem::path& root) {
  Unpacker unpacker(bytes);
  const std::string id = unpacker.text();
  if (unpacker.number() == 0) return {std::nullopt, id};
  LatestStep latest;
  latest.step.step = unpacker.integer();
  latest.step.generation = unpacker.integer();
  latest.step.directory = root / unpacker.text();
  while (!unpacker.empty()) {
    const std::string name = unpacker.text();
    latest.rejected.push_back({root / name, unpacker.text()});
  }
  return {std::move(latest), id};
}

std::string tensor_list(const Manifest& manifest) {
  Manifest list;
  list.id = std::string(32, '0');
  list.step = manifest.step;
  list.writers = manifest.writers;
  list.tensors = manifest.tensors;
  return print_manifest(list);
}

}  // namespace shardwise::detail
