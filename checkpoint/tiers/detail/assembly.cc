#include "shardwise/tiers/detail/assembly.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <string_view>

#include "shardwise/checkpoint/detail/internals.h"
#include "shardwise/checkpoint/detail/read/file_check.h"
#include "shardwise/checkpoint/detail/read/read_plan.h"
#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"
#include "shardwise/checkpoint/detail/record/packer.h"
#include "shardwise/checkpoint/detail/root/attempt.h"
#include "shardwise/checkpoint/detail/root/exchange.h"
#include "shardwise/jobs/detail/save/file_transfer.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/hash.h"
#include "shardwise/storage/utf8.h"

namespace shardwise::tiers_detail {
namespace {

namespace fs = std::filesystem;

// A process that has none gets its text from the first one that has.
std::string manifest_text(const ProcessGroup& group, const SavedStep& step,
                          const StepHolders& holders, const std::string& own) {
  const int first = holders.manifest.front();
  std::vector<ProcessGroup::Outgoing> outgoing;
  for (int rank = 0; group.rank() == first && rank < group.size(); ++rank) {
    if (std::ranges::binary_search(holders.manifest, rank)) continue;
    const auto bytes = std::as_bytes(std::span(own));
    outgoing.push_back({rank, Bytes(bytes.begin(), bytes.end())});
  }
  std::vector<int> from;
  if (own.empty()) from.push_back(first);
  const std::vector<Bytes> heard = group.exchange(std::move(outgoing), from);
  if (heard.empty()) return own;
  std::string text(reinterpret_cast<const char*>(heard.front().data()), heard.front().size());
  if (to_hex(hash128(text)) == step.manifest) return text;
  throw Error(ErrorCode::corrupt,
              fmt::format("read the manifest of step {} that rank {} sent: found the hash {}, "
                          "needed {}",
                          step.step, first, to_hex(hash128(text)), step.manifest));
}

// A step with only its manifest here.
detail::StoredCheckpoint step_without_files(const detail::Manifest& manifest) {
  const fs::path shown = fmt::format("step {} of the fast tier", manifest.step);
  detail::StoredCheckpoint checkpoint =
      detail::unread_checkpoint({shown, manifest.step, nullptr}, manifest);
  checkpoint.files = std::make_shared<detail::OpenFiles>(
      manifest.files.size(), [shown](std::size_t /*number*/) -> std::unique_ptr<File> {
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("read {}: its files are not here yet, needed is what it says of "
                                "its tensors",
                                shown.string()));
      });
  return checkpoint;
}

std::vector<std::size_t> files_with(const detail::Manifest& manifest, const NeededBoxes& needed) {
  const detail::StoredCheckpoint checkpoint = step_without_files(manifest);
  const std::vector<TensorBox> boxes = needed(detail::Internals::reader_of(checkpoint));
  std::vector<detail::ReadTarget> targets;
  for (const TensorBox& want : boxes) {
    const auto tensor =
        std::ranges::lower_bound(manifest.tensors, want.name, {}, &detail::TensorEntry::name);
    if (tensor == manifest.tensors.end() || tensor->name != want.name) {
      throw Error(ErrorCode::not_found,
                  fmt::format("find the latest step: step {} has no tensor {:?}", manifest.step,
                              want.name));
    }
    if (want.box.rank() != tensor->shape.size() || !Box::whole(tensor->shape).contains(want.box)) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("find the latest step: box {} leaves tensor {:?} of shape {}",
                              shardwise::to_string(want.box), want.name,
                              shardwise::to_string(tensor->shape)));
    }
    targets.push_back({static_cast<std::size_t>(tensor - manifest.tensors.begin()), &want.box, {}});
  }
  return detail::files_to_load(checkpoint, targets);
}

/// One call of assemble().
class Assembly {
 public:
  Assembly(const ProcessGroup& group, FileSystem& file_system, const AssemblyPlaces& places,
           const Inventory& inventory, const std::pair<const SavedStep, StepHolders>& step,
           const NeededBoxes& needed);

  AssembledStep run();

 private:
  void check_own_files();
  bool take_missing();
  std::string apply(std::span<const AssemblyState> states);
  std::vector<jobs_detail::FileTransfer> transfers_for(std::span<const AssemblyState> states) const;
  void take(std::span<const jobs_detail::FileTransfer> transfers);
  bool is_refused(std::span<const AssemblyState> states);
  bool mend_drafts();
  void put_in_place(const fs::path& staged, const fs::path& place);
  void publish();
  std::int64_t number_of(const std::string& name) const;
  const std::string& name_of(std::int64_t file) const {
    return manifest_.files[static_cast<std::size_t>(file)].name;
  }
  bool check(detail::StoredCheckpoint& checkpoint, std::int64_t file, int holder);
  detail::Attempt& staging();

  const ProcessGroup& group_;
  FileSystem& files_;
  const AssemblyPlaces& places_;
  const SavedStep& step_;
  StepHolders holders_;
  HeldFiles held_;
  const std::string text_;  // of the manifest
  detail::Manifest manifest_;
  std::optional<fs::path> directory_;  // this process's, if it has the step
  std::vector<fs::path> leftovers_;
  std::optional<detail::Attempt> staging_;  // files that are taken come here first
  std::set<std::int64_t> missing_;
  std::vector<Draft> drafts_;                               // taken or own, with bad chunks
  std::set<std::pair<std::int64_t, int>> with_bad_chunks_;  // copies; the same on all processes
  std::vector<BadCopy> bad_;                                // not told yet
  std::string refusal_;
  AssembledStep result_;
};

Assembly::Assembly(const ProcessGroup& group, FileSystem& file_system, const AssemblyPlaces& places,
                   const Inventory& inventory, const std::pair<const SavedStep, StepHolders>& step,
                   const NeededBoxes& needed)
    : group_(group),
      files_(file_system),
      places_(places),
      step_(step.first),
      holders_(step.second),
      held_(inventory.steps.contains(step.first) ? inventory.steps.at(step.first) : HeldFiles()),
      text_(manifest_text(group, step_, holders_, held_.manifest)),
      manifest_(detail::parse_manifest(text_, fmt::format("manifest of step {}", step_.step))) {
  if (manifest_.step == detail::kNoStep) manifest_.step = step_.step;
  if (needed) {
    try {
      for (const std::size_t file : files_with(manifest_, needed)) {
        missing_.insert(static_cast<std::int64_t>(file));
      }
    } catch (const std::exception& e) {
      refusal_ = std::string_view(e.what()).empty() ? "no reason is given" : e.what();
      result_.refused = std::current_exception();
    }
  } else {
    for (std::int64_t file = 0; file < std::ssize(manifest_.files); ++file) missing_.insert(file);
  }
  // The newest of them is the last one.
  for (const fs::path& directory : held_.directories) {
    if (directory.parent_path() == places_.own) directory_ = directory;
  }
}

std::int64_t Assembly::number_of(const std::string& name) const {
  return std::ranges::find(manifest_.files, name, &detail::FileEntry::name) -
         manifest_.files.begin();
}

/// Says whether the file is whole or a draft now.
bool Assembly::check(detail::StoredCheckpoint& checkpoint, std::int64_t file, int holder) {
  try {
    const std::vector<detail::BadChunk> bad =
        detail::find_bad_chunks(checkpoint, static_cast<std::size_t>(file));
    if (!bad.empty()) {
      Draft draft{checkpoint.directory, file, {}};
      for (const detail::BadChunk& chunk : bad) draft.bad.push_back(chunk.number);
      std::ranges::sort(draft.bad);
      std::string problem = bad.front().problem;
      if (bad.size() > 1) problem += fmt::format("; {} chunks are bad", bad.size());
      bad_.push_back({file, holder, std::move(problem), std::ssize(bad)});
      drafts_.push_back(std::move(draft));
    }
    missing_.erase(file);
    return true;
  } catch (const Error& e) {
    bad_.push_back({file, holder, e.what()});
    return false;
  }
}

void Assembly::check_own_files() {
  if (!directory_) return;
  detail::StoredCheckpoint checkpoint = detail::unread_checkpoint(
      {*directory_, manifest_.step, files_.open_directory(*directory_)}, manifest_);
  for (const std::int64_t file : std::set(missing_)) {
    const auto held = held_.paths.find(file);
    if (held == held_.paths.end()) continue;
    // The first copy is the one that is used next.
    const auto own = std::ranges::find(held->second, *directory_ / name_of(file));
    if (own == held->second.end()) continue;
    std::rotate(held->second.begin(), own, own + 1);
    check(checkpoint, file, group_.rank());
  }
}

/// Forgets the copies that somebody found bad. Says why the step cannot be had, if a file that is
/// missing somewhere has no copy left.
std::string Assembly::apply(std::span<const AssemblyState> states) {
  std::set<std::pair<std::int64_t, int>> forgotten;  // two may have taken the same copy
  std::map<std::int64_t, std::string> problems;
  for (const AssemblyState& state : states) {
    for (const BadCopy& copy : state.bad) {
      if (copy.bad_chunks > 0) {  // its other chunks are of use
        const bool is_new = with_bad_chunks_.emplace(copy.file, copy.holder).second;
        if (is_new) result_.damaged.push_back(copy.problem);
        continue;
      }
      problems[copy.file] = copy.problem;
      if (!forgotten.emplace(copy.file, copy.holder).second) continue;
      result_.damaged.push_back(copy.problem);
      const auto of = holders_.of.find(copy.file);
      if (of == holders_.of.end()) continue;
      const auto at = std::ranges::find(of->second, copy.holder);
      if (at != of->second.end()) of->second.erase(at);
      if (copy.holder != group_.rank()) continue;
      std::vector<fs::path>& paths = held_.paths[copy.file];
      if (!paths.empty()) paths.erase(paths.begin());
    }
  }
  for (const AssemblyState& state : states) {
    for (const std::int64_t file : state.missing) {
      const auto of = holders_.of.find(file);
      if (of != holders_.of.end() && !of->second.empty()) continue;
      return fmt::format("no good copy of {} is left: {}", name_of(file), problems[file]);
    }
  }
  return {};
}

/// A process that has a file on its own host takes that one.
std::vector<jobs_detail::FileTransfer> Assembly::transfers_for(
    std::span<const AssemblyState> states) const {
  std::vector<std::size_t> sent(static_cast<std::size_t>(group_.size()), 0);  // files by each
  std::vector<jobs_detail::FileTransfer> transfers;
  for (int rank = 0; rank < group_.size(); ++rank) {
    for (const std::int64_t file : states[static_cast<std::size_t>(rank)].missing) {
      const std::vector<int>& ranks = holders_.of.find(file)->second;
      int from = rank;
      if (!std::ranges::binary_search(ranks, rank)) {
        from = *std::ranges::min_element(
            ranks, {}, [&](int holder) { return sent[static_cast<std::size_t>(holder)]; });
      }
      ++sent[static_cast<std::size_t>(from)];
      const detail::FileEntry& entry = manifest_.files[static_cast<std::size_t>(file)];
      transfers.push_back({from, rank, entry.name, entry.bytes});
    }
  }
  return transfers;
}

detail::Attempt& Assembly::staging() {
  if (!staging_) {
    staging_.emplace(files_, places_.own, step_.step, leftovers_);
    detail::write_whole_file(files_, staging_->directory() / detail::kManifestName,
                             std::as_bytes(std::span(text_)));
  }
  return *staging_;
}

void Assembly::take(std::span<const jobs_detail::FileTransfer> transfers) {
  const fs::path target = missing_.empty() ? fs::path() : staging().directory();
  const auto [failed, linked] = transfer_shard_files(
      group_, files_, manifest_, transfers,
      [&](const std::string& name) { return held_.paths.at(number_of(name)).front(); }, target,
      directory_.value_or(fs::path()));
  if (missing_.empty()) return;
  detail::StoredCheckpoint checkpoint =
      detail::unread_checkpoint({target, manifest_.step, files_.open_directory(target)}, manifest_);
  for (std::size_t i = 0; i < transfers.size(); ++i) {
    const jobs_detail::FileTransfer& transfer = transfers[i];
    if (transfer.to != group_.rank()) continue;
    const std::int64_t file = number_of(transfer.name);
    if (const auto at = std::ranges::find(failed, i, &jobs_detail::FailedTransfer::number);
        at != failed.end()) {
      bad_.push_back(
          {file, transfer.from,
           fmt::format("take {} from rank {}: {}", transfer.name, transfer.from, at->problem)});
      continue;
    }
    if (!check(checkpoint, file, transfer.from)) continue;
    ++result_.files_taken;
    result_.bytes_taken += transfer.bytes;
    for (const jobs_detail::LinkedWant& sent : linked) {
      if (sent.transfer == i) result_.bytes_taken += sent.linked.bytes;
    }
  }
}

/// False if the step cannot be had.
bool Assembly::take_missing() {
  for (;;) {
    const std::vector<Bytes> messages = group_.all_gather(
        encode(AssemblyState{bad_, {missing_.begin(), missing_.end()}, refusal_}));
    std::vector<AssemblyState> states;
    states.reserve(messages.size());
    for (const Bytes& message : messages) {
      states.push_back(decode_assembly_state(message, std::ssize(manifest_.files), group_.size()));
    }
    bad_.clear();
    if (is_refused(states)) return false;
    result_.problem = apply(states);
    if (!result_.problem.empty()) return false;
    const auto has_all = [](const AssemblyState& state) { return state.missing.empty(); };
    if (std::ranges::all_of(states, has_all)) return true;
    take(transfers_for(states));
  }
}

/// Each that refuses has its own reason; the others have that of the first.
bool Assembly::is_refused(std::span<const AssemblyState> states) {
  const auto first = std::ranges::find_if_not(
      states, [](const AssemblyState& state) { return state.refused.empty(); });
  if (first == states.end()) return false;
  if (!result_.refused) {
    result_.refused = std::make_exception_ptr(
        Error(ErrorCode::cancelled, fmt::format("find the latest step: rank {}: {}",
                                                first - states.begin(), shown(first->refused))));
  }
  return true;
}

/// False if a chunk is nowhere.
bool Assembly::mend_drafts() {
  if (with_bad_chunks_.empty()) return true;
  const Mended mended = mend(group_, files_, places_.sources, manifest_, drafts_);
  result_.mended = mended.from;
  result_.problem = mended.problem;
  return result_.problem.empty();
}

/// Exchanges it with a file that is there, which may be of use until it goes with the attempt.
void Assembly::put_in_place(const fs::path& staged, const fs::path& place) {
  try {
    return files_.rename(staged, place);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::already_exists) throw;
  }
  fs::path aside = staged;
  detail::exchange_by_any_means(files_, staged, place, aside += ".bad");
}

void Assembly::publish() {
  if (!directory_) {
    files_.sync_directory(staging().directory());
    result_.directory = staging_->publish(Existing::replace);
    return;
  }
  result_.directory = *directory_;
  if (!staging_) return;
  // A linked file sorts before the files that link it.
  for (const std::string& name : files_.list(staging_->directory())) {
    if (name == detail::kManifestName) continue;
    put_in_place(staging_->directory() / name, *directory_ / name);
  }
  files_.sync_directory(*directory_);
}

AssembledStep Assembly::run() {
  check_own_files();
  if (take_missing() && mend_drafts()) publish();
  return std::move(result_);
}

}  // namespace

Bytes encode(const AssemblyState& state) {
  detail::Packer packer;
  packer.number(std::uint64_t{state.bad.size()});
  for (const BadCopy& copy : state.bad) {
    packer.number(copy.file);
    packer.number(std::int64_t{copy.holder});
    packer.text(copy.problem);
    packer.number(copy.bad_chunks);
  }
  packer.number(std::uint64_t{state.missing.size()});
  for (const std::int64_t file : state.missing) packer.number(file);
  packer.text(state.refused);
  return detail::sealed(packer.take());
}

AssemblyState decode_assembly_state(std::span<const std::byte> message, std::int64_t files,
                                    int processes) {
  detail::Unpacker unpacker =
      detail::Unpacker::of_sealed(message, "which files another process needs");
  const auto file_number = [&] {
    const std::int64_t file = unpacker.integer();
    unpacker.require(0 <= file && file < files, "found a file that the step does not have");
    return file;
  };
  AssemblyState state;
  for (std::uint64_t left = unpacker.number(); left > 0; --left) {
    BadCopy& copy = state.bad.emplace_back();
    copy.file = file_number();
    const std::int64_t holder = unpacker.integer();
    unpacker.require(0 <= holder && holder < processes, "found a rank that there is not");
    copy.holder = static_cast<int>(holder);
    copy.problem = unpacker.text();
    copy.bad_chunks = unpacker.integer(0);
  }
  for (std::uint64_t left = unpacker.number(); left > 0; --left) {
    const std::int64_t file = file_number();
    unpacker.require(state.missing.empty() || state.missing.back() < file,
                     "found files out of order, needed is ascending");
    state.missing.push_back(file);
  }
  state.refused = unpacker.text();
  unpacker.end();
  return state;
}

AssembledStep assemble(const ProcessGroup& group, FileSystem& file_system,
                       const AssemblyPlaces& places, const Inventory& inventory,
                       const std::pair<const SavedStep, StepHolders>& step,
                       const NeededBoxes& needed) {
  return Assembly(group, file_system, places, inventory, step, needed).run();
}

}  // namespace shardwise::tiers_detail
