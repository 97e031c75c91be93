#include "shardwise/tiers/detail/mending.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "shardwise/checkpoint/detail/read/file_check.h"
#include "shardwise/checkpoint/detail/record/packer.h"
#include "shardwise/checkpoint/detail/root/root.h"
#include "shardwise/mend/detail/chunk_mender.h"
#include "shardwise/shard/error.h"
#include "shardwise/tiers/detail/inventory.h"

namespace shardwise::tiers_detail {
namespace {

namespace fs = std::filesystem;

// Chunks that are on their way at the same time, to all processes together.
constexpr std::uint64_t kAskedBytes = std::uint64_t{64} << 20;

// A file number, an address, a size, and a hash of 8 bytes.
constexpr std::size_t kLeastAskBytes = 11;

// A root that cannot be read is no help.
std::vector<fs::path> newest_first(FileSystem& file_system, std::span<const fs::path> roots) {
  std::vector<std::pair<std::int64_t, fs::path>> steps;
  for (const fs::path& root : roots) {
    try {
      for (const detail::StepName& name : detail::committed_names(file_system, root)) {
        steps.emplace_back(name.step, root / to_string(name));
      }
    } catch (const Error&) {
    }
  }
  std::ranges::reverse(steps);  // of one step the highest generation first
  std::ranges::stable_sort(steps, std::ranges::greater(),
                           [](const auto& step) { return step.first; });
  std::vector<fs::path> paths;
  paths.reserve(steps.size());
  for (auto& [step, path] : steps) paths.push_back(std::move(path));
  return paths;
}

std::vector<fs::path> all_processes(FileSystem& file_system, std::span<const fs::path> fast) {
  std::vector<fs::path> all;
  for (const fs::path& root : fast) {
    for (fs::path& process : process_directories(file_system, root))
      all.push_back(std::move(process));
  }
  return all;
}

// The number of a piece depends on which files were loaded before.
std::vector<detail::ChunkId> bad_chunks_of(const detail::StoredCheckpoint& checkpoint,
                                           const Draft& draft) {
  std::vector<detail::ChunkId> bad;
  const std::vector<detail::TensorEntry>& tensors = checkpoint.manifest.tensors;
  for (const auto& [tensor, piece] :
       detail::pieces_in_file(tensors, static_cast<std::size_t>(draft.file))) {
    const detail::PieceEntry entry = tensors[tensor].pieces[piece];
    const std::int64_t chunks = detail::num_chunks(entry);
    for (std::int64_t c = 0; c < chunks; ++c) {
      if (!std::ranges::binary_search(draft.bad, entry.first_chunk + c)) continue;
      bad.push_back({tensor, piece, c});
    }
  }
  return bad;
}

std::vector<fs::path> directories_of(std::span<const Draft> drafts) {
  std::vector<fs::path> directories;
  for (const Draft& draft : drafts) {
    const bool is_new = std::ranges::find(directories, draft.directory) == directories.end();
    if (is_new) directories.push_back(draft.directory);
  }
  return directories;
}

/// One call of mend().
class Mending {
 public:
  Mending(const ProcessGroup& group, FileSystem& file_system, const MendingSources& sources,
          const detail::Manifest& manifest, std::span<const Draft> drafts)
      : group_(group),
        files_(file_system),
        manifest_(manifest),
        drafts_(drafts),
        donors_(file_system, sources),
        mender_(file_system, draft_, directories_of(drafts)) {
    for (const Draft& draft : drafts_) load(draft);
  }

  Mended run();

 private:
  detail::StoredCheckpoint opened(const fs::path& directory) const {
    return detail::unread_checkpoint({directory, manifest_.step, files_.open_directory(directory)},
                                     manifest_);
  }
  const std::string& name_of(std::int64_t file) const {
    return manifest_.files[static_cast<std::size_t>(file)].name;
  }
  void load(const Draft& draft);
  bool put(const detail::ChunkId& id, std::span<const std::byte> bytes, const std::string& from);
  void look_on_this_host();
  std::vector<ChunkAsk> next_asks() const;
  bool ask_all();
  std::vector<ProcessGroup::Outgoing> answers(
      std::span<const std::vector<ChunkAsk>> asks, std::span<const int> answering,
      std::map<std::size_t, mend_detail::FoundChunk> found) const;
  void take_answers(std::span<const int> answering, std::span<const int> from,
                    std::span<const Bytes> heard);
  void look_in_durable();
  void finish();

  const ProcessGroup& group_;
  FileSystem& files_;
  const detail::Manifest& manifest_;
  const std::span<const Draft> drafts_;
  ChunkDonors donors_;
  detail::StoredCheckpoint draft_;
  mend_detail::ChunkMender mender_;
  std::vector<detail::ChunkId> wanted_;                            // not asked for yet
  std::vector<detail::ChunkId> nowhere_;                           // on no host
  std::map<std::pair<std::size_t, std::string>, int> sources_of_;  // file and source: chunks
  std::string problem_;
};

void Mending::load(const Draft& draft) {
  if (draft_.manifest.files.empty()) draft_ = opened(draft.directory);
  const auto number = static_cast<std::size_t>(draft.file);
  const std::shared_ptr<File> file = files_.open(draft.directory / name_of(draft.file));
  detail::add_file_tables(
      draft_, number,
      detail::read_file_tables(*file, draft.directory, draft_.manifest.files[number]));
  const std::vector<detail::ChunkId> bad = bad_chunks_of(draft_, draft);
  wanted_.insert(wanted_.end(), bad.begin(), bad.end());
}

bool Mending::put(const detail::ChunkId& id, std::span<const std::byte> bytes,
                  const std::string& from) {
  if (!mend_detail::are_stored_bytes({draft_, id, std::nullopt}, bytes)) return false;
  mender_.put(id, bytes);
  ++sources_of_[{draft_.file_of(id), from}];
  return true;
}

void Mending::look_on_this_host() {
  std::erase_if(wanted_, [&](const detail::ChunkId& id) {
    const auto found = donors_.host.find_stored(mend_detail::bytes_of({draft_, id, std::nullopt}));
    return found && put(id, found->bytes, donors_.shown(found->from));
  });
}

// One at least, if any is left.
std::vector<ChunkAsk> Mending::next_asks() const {
  const std::uint64_t most = kAskedBytes / static_cast<std::uint64_t>(group_.size());
  std::vector<ChunkAsk> asks;
  std::uint64_t bytes = 0;
  for (const detail::ChunkId& id : wanted_) {
    const detail::ChunkRecord& record = draft_.record(id);
    bytes += record.stored_bytes;
    if (!asks.empty() && bytes > most) break;
    asks.push_back({draft_.tensor(id).pieces.file(id.piece), record.address, record.stored_bytes,
                    record.hash});
  }
  return asks;
}

/// One round: all tell which chunks they want, then which of those they have; the first that has a
/// chunk sends it. False if nobody wants anything.
bool Mending::ask_all() {
  std::vector<std::vector<ChunkAsk>> asks;
  std::size_t total = 0, first_own = 0;
  for (const Bytes& message : group_.all_gather(encode(next_asks()))) {
    if (std::ssize(asks) == group_.rank()) first_own = total;
    asks.push_back(decode_asks(message, std::ssize(manifest_.files)));
    total += asks.back().size();
  }
  if (total == 0) return false;
  std::map<std::size_t, mend_detail::FoundChunk> found;
  Bytes have(total, std::byte{0});
  std::size_t number = 0;
  for (int rank = 0; rank < group_.size(); ++rank) {
    for (const ChunkAsk& ask : asks[static_cast<std::size_t>(rank)]) {
      const std::size_t at = number++;
      if (rank == group_.rank()) continue;
      auto bytes = donors_.host.find_stored({name_of(ask.file), ask.address, ask.bytes, ask.hash});
      if (!bytes) continue;
      have[at] = std::byte{1};
      found.emplace(at, *std::move(bytes));
    }
  }
  std::vector<int> answering(total, -1);  // the rank that sends each
  const std::vector<Bytes> all = group_.all_gather(std::move(have));
  for (int rank = group_.size() - 1; rank >= 0; --rank) {
    const Bytes& its = all[static_cast<std::size_t>(rank)];
    if (its.size() != total) {
      throw Error(ErrorCode::corrupt,
                  fmt::format("read which chunks rank {} has: found {} of them, needed {}", rank,
                              its.size(), total));
    }
    for (std::size_t i = 0; i < total; ++i) {
      if (its[i] != std::byte{0}) answering[i] = rank;
    }
  }
  const std::span<const int> own =
      std::span(answering).subspan(first_own, asks[static_cast<std::size_t>(group_.rank())].size());
  std::vector<int> from(own.begin(), own.end());
  std::ranges::sort(from);
  from.erase(std::unique(from.begin(), from.end()), from.end());
  std::erase(from, -1);
  const std::vector<Bytes> heard =
      group_.exchange(answers(asks, answering, std::move(found)), from);
  take_answers(own, from, heard);
  return true;
}

/// For each rank that this one answers: the chunks that it sends, in the order of the requests.
std::vector<ProcessGroup::Outgoing> Mending::answers(
    std::span<const std::vector<ChunkAsk>> asks, std::span<const int> answering,
    std::map<std::size_t, mend_detail::FoundChunk> found) const {
  std::vector<ProcessGroup::Outgoing> outgoing;
  std::size_t number = 0;
  for (int rank = 0; rank < group_.size(); ++rank) {
    detail::Packer packer;
    bool is_any = false;
    for (std::size_t left = asks[static_cast<std::size_t>(rank)].size(); left > 0; --left) {
      const std::size_t at = number++;
      if (answering[at] != group_.rank()) continue;
      const mend_detail::FoundChunk& chunk = found.at(at);
      packer.text(donors_.shown(chunk.from));
      packer.text({reinterpret_cast<const char*>(chunk.bytes.data()), chunk.bytes.size()});
      is_any = true;
    }
    if (is_any) outgoing.push_back({rank, detail::sealed(packer.take())});
  }
  return outgoing;
}

void Mending::take_answers(std::span<const int> answering, std::span<const int> from,
                           std::span<const Bytes> heard) {
  std::map<int, detail::Unpacker> answers;
  for (std::size_t i = 0; i < from.size(); ++i) {
    answers.emplace(from[i],
                    detail::Unpacker::of_sealed(heard[i], "chunks that another process has sent"));
  }
  for (std::size_t i = 0; i < answering.size(); ++i) {
    const detail::ChunkId& id = wanted_[i];
    bool is_right = false;
    if (answering[i] >= 0) {
      detail::Unpacker& answer = answers.at(answering[i]);
      const std::string directory = answer.line();
      is_right = put(id, answer.part(answer.number()),
                     fmt::format("rank {}'s {}", answering[i], directory));
    }
    if (!is_right) nowhere_.push_back(id);
  }
  for (const auto& [rank, answer] : answers) answer.end();
  wanted_.erase(wanted_.begin(), wanted_.begin() + std::ssize(answering));
}

void Mending::look_in_durable() {
  for (const detail::ChunkId& id : nowhere_) {
    std::string why_not;
    const auto found = donors_.durable.find({draft_, id, std::nullopt}, why_not);
    if (found && put(id, found->bytes, found->from.string())) continue;
    problem_ = fmt::format("no good copy of {} is left: on no host, nor in the durable root, is {}",
                           draft_.file_name(draft_.file_of(id)), draft_.describe(id));
    return;
  }
}

void Mending::finish() {
  if (!problem_.empty()) return;
  for (const Draft& draft : drafts_) {
    try {
      detail::StoredCheckpoint checkpoint = opened(draft.directory);
      detail::check_file(checkpoint, static_cast<std::size_t>(draft.file));
    } catch (const Error& e) {
      problem_ = fmt::format("no good copy of {} is left: {}", name_of(draft.file), e.what());
      return;
    }
  }
  mender_.seal();
}

Mended Mending::run() {
  look_on_this_host();
  while (ask_all()) {
  }
  look_in_durable();
  finish();
  Mended mended;
  const auto text = std::as_bytes(std::span(problem_));
  for (const Bytes& message : group_.all_gather(Bytes(text.begin(), text.end()))) {
    if (message.empty()) continue;
    mended.problem.assign(reinterpret_cast<const char*>(message.data()), message.size());
    return mended;
  }
  for (const auto& [file_and_source, chunks] : sources_of_) {
    mended.from.push_back(fmt::format("{} chunk{} of {} from {}", chunks, chunks == 1 ? "" : "s",
                                      draft_.file_name(file_and_source.first),
                                      file_and_source.second));
  }
  return mended;
}

}  // namespace

Bytes encode(std::span<const ChunkAsk> asks) {
  detail::Packer packer;
  packer.number(std::uint64_t{asks.size()});
  for (const ChunkAsk& ask : asks) {
    packer.number(ask.file);
    packer.number(ask.address);
    packer.number(ask.bytes);
    packer.word(ask.hash);
  }
  return detail::sealed(packer.take());
}

std::vector<ChunkAsk> decode_asks(std::span<const std::byte> message, std::int64_t files) {
  detail::Unpacker unpacker =
      detail::Unpacker::of_sealed(message, "which chunks another process needs");
  std::vector<ChunkAsk> asks;
  for (std::size_t left = unpacker.count(kLeastAskBytes); left > 0; --left) {
    ChunkAsk& ask = asks.emplace_back();
    ask.file = unpacker.integer();
    unpacker.require(0 <= ask.file && ask.file < files, "found a file that the step does not have");
    ask.address = unpacker.number();
    ask.bytes = unpacker.number();
    ask.hash = unpacker.word();
  }
  unpacker.end();
  return asks;
}

Mended mend(const ProcessGroup& group, FileSystem& file_system, const MendingSources& sources,
            const detail::Manifest& manifest, std::span<const Draft> drafts) {
  return Mending(group, file_system, sources, manifest, drafts).run();
}

ChunkDonors::ChunkDonors(FileSystem& file_system, const MendingSources& sources)
    : host(file_system, newest_first(file_system, all_processes(file_system, sources.fast))),
      durable(file_system, sources.durable.empty()
                               ? std::vector<fs::path>()
                               : newest_first(file_system, {&sources.durable, 1})),
      is_of_one_root_(sources.fast.size() == 1) {}

std::string ChunkDonors::shown(const fs::path& step) const {
  if (!is_of_one_root_) return step.string();
  return (step.parent_path().filename() / step.filename()).string();
}

std::vector<std::string> chunks_nowhere(ChunkDonors& donors, const detail::StoredCheckpoint& copy,
                                        const Draft& draft) {
  std::vector<std::string> nowhere;
  for (const detail::ChunkId& id : bad_chunks_of(copy, draft)) {
    const mend_detail::WantedChunk wanted{copy, id, std::nullopt};
    const auto found = donors.host.find_stored(mend_detail::bytes_of(wanted));
    std::string why_not;
    if (found && are_stored_bytes(wanted, found->bytes)) continue;
    if (donors.durable.find(wanted, why_not)) continue;
    nowhere.push_back(copy.describe(id));
  }
  return nowhere;
}

}  // namespace shardwise::tiers_detail
