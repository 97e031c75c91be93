#include "shardwise/checkpoint/detail/group/save_report.h"

#include "shardwise/checkpoint/detail/group/packer.h"

namespace shardwise::detail {

Bytes encode(const AttemptNotice& notice) {
  Packer packer;
  packer.number(notice.step);
  packer.text(notice.id);
  packer.text(notice.directory);
  packer.number(std::uint64_t{notice.is_reused ? 1u : 0u});
  packer.text(notice.user_json);
  packer.text(notice.objects_json);
  return packer.take();
}

AttemptNotice decode_notice(std::span<const std::byte> bytes) {
  Unpacker unpacker(bytes);
  AttemptNotice notice;
  notice.step = unpacker.integer();
  notice.id = unpacker.text();
  notice.directory = unpacker.text();
  notice.is_reused = unpacker.number() != 0;
  notice.user_json = unpacker.text();
  notice.objects_json = unpacker.text();
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
