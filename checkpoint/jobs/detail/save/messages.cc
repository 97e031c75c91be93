#include "shardwise/jobs/detail/save/messages.h"

#include "shardwise/checkpoint/detail/record/packer.h"
#include "shardwise/checkpoint/detail/record/part_costs.h"

namespace shardwise::jobs_detail {

using namespace detail;

namespace {

constexpr const char *kNotice = "the notice of a save", *kOutcome = "the outcome of a save",
                     *kLatest = "the latest step that rank 0 found";

// A name in a root, which leads nowhere else.
std::string take_name(Unpacker& unpacker) {
  std::string name = unpacker.text();
  if (name == "." || name == ".." || name.find('/') != std::string::npos ||
      name.find('\0') != std::string::npos) {
    unpacker.fail("found a name that is no directory's in a root");
  }
  return name;
}

}  // namespace

Bytes encode(const AttemptNotice& notice) {
  Packer packer;
  packer.text(notice.id);
  packer.text(notice.directory);
  packer.number(std::uint64_t{notice.is_reused ? 1u : 0u});
  packer.number(std::uint64_t{notice.skipped ? 1u : 0u});
  packer.number(static_cast<std::int64_t>(notice.existing));
  packer.text(notice.base);
  put(packer, notice.terms);
  return sealed(packer.take());
}

AttemptNotice decode_notice(std::span<const std::byte> bytes) {
  Unpacker unpacker = Unpacker::of_sealed(bytes, kNotice);
  AttemptNotice notice;
  notice.id = unpacker.text();
  if (Hash128 hash; !from_hex(notice.id, hash)) {
    unpacker.fail("found an id that is not 32 hex digits");
  }
  notice.directory = take_name(unpacker);
  notice.is_reused = unpacker.flag();
  notice.skipped = unpacker.flag();
  notice.existing = static_cast<Existing>(unpacker.integer(0, static_cast<int>(Existing::skip)));
  notice.base = unpacker.text();
  if (notice.base.find('\0') != std::string::npos) unpacker.fail("found a path with a NUL");
  notice.terms = take_terms(unpacker);
  unpacker.end();
  return notice;
}

Bytes encode(const SaveOutcome& outcome) {
  Packer packer;
  packer.number(std::uint64_t{outcome.lists_wanted.size()});
  for (const int rank : outcome.lists_wanted) packer.number(std::int64_t{rank});
  const SaveStats& stats = outcome.stats;
  packer.text(stats.directory.filename().string());
  packer.number(std::uint64_t{stats.logical_bytes});
  packer.number(std::uint64_t{stats.stored_bytes});
  packer.number(std::uint64_t{stats.unchanged_bytes});
  packer.number(std::uint64_t{stats.file_bytes});
  packer.number(stats.chunks);
  put(packer, costs_of(stats));
  packer.text(outcome.manifest);
  return sealed(packer.take());
}

SaveOutcome decode_outcome(std::span<const std::byte> bytes, int processes) {
  Unpacker unpacker = Unpacker::of_sealed(bytes, kOutcome);
  SaveOutcome outcome;
  for (std::size_t left = unpacker.count(); left > 0; --left) {
    outcome.lists_wanted.push_back(static_cast<int>(unpacker.integer(0, processes - 1)));
  }
  outcome.stats.directory = take_name(unpacker);
  outcome.stats.logical_bytes = unpacker.number();
  outcome.stats.stored_bytes = unpacker.number();
  outcome.stats.unchanged_bytes = unpacker.number();
  outcome.stats.file_bytes = unpacker.number();
  outcome.stats.chunks = unpacker.integer(0);
  set_costs(outcome.stats, take_costs(unpacker));
  outcome.manifest = unpacker.text();
  unpacker.end();
  return outcome;
}

Bytes encode(const std::optional<LatestStep>& latest, const std::string& id) {
  Packer packer;
  packer.text(id);
  packer.number(std::uint64_t{latest ? 1u : 0u});
  if (!latest) return sealed(packer.take());
  packer.number(latest->step.step);
  packer.number(latest->step.generation);
  packer.text(latest->step.directory.filename().string());
  for (const RejectedStep& step : latest->rejected) {
    packer.text(step.directory.filename().string());
    packer.text(step.reason);
    packer.number(std::uint64_t{step.is_foreign ? 1u : 0u});
  }
  return sealed(packer.take());
}

std::pair<std::optional<LatestStep>, std::string> decode_latest(std::span<const std::byte> bytes,
                                                                const std::filesystem::path& root) {
  Unpacker unpacker = Unpacker::of_sealed(bytes, kLatest);
  const std::string id = unpacker.text();
  if (!unpacker.flag()) {
    unpacker.end();
    return {std::nullopt, id};
  }
  LatestStep latest;
  latest.step.step = unpacker.integer(0);
  latest.step.generation = unpacker.integer(1);
  latest.step.directory = root / take_name(unpacker);
  while (!unpacker.empty()) {
    const std::string name = take_name(unpacker);
    std::string reason = unpacker.text();
    latest.rejected.push_back({root / name, std::move(reason), unpacker.flag()});
  }
  return {std::move(latest), id};
}

}  // namespace shardwise::jobs_detail
