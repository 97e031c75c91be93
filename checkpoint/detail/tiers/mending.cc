#include "shardwise/checkpoint/detail/tiers/mending.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "shardwise/checkpoint/detail/read/file_check.h"
#include "shardwise/checkpoint/detail/repair/chunk_finder.h"
#include "shardwise/checkpoint/detail/root/root.h"
#include "shardwise/checkpoint/detail/tiers/host_chunks.h"
#include "shardwise/checkpoint/detail/together/packer.h"
#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

namespace fs = std::filesystem;

// Chunks that are on their way at the same time, to all processes together.
constexpr std::uint64_t kAskedBytes = std::uint64_t{64} << 20;

constexpr std::uint64_t kStagedBytes = std::uint64_t{1} << 20;

// Of a disk or a cache, the least that can be unreadable.
constexpr std::uint64_t kPageBytes = 4096;

// A file number, an address, a size, and a hash of 8 bytes.
constexpr std::size_t kLeastAskBytes = 11;

std::vector<fs::path> newest_first(FileSystem& file_system, const fs::path& root) {
  std::vector<fs::path> steps;
  if (root.empty()) return steps;
  try {
    for (const StepName& name : committed_names(file_system, root)) {
      steps.push_back(root / to_string(name));
    }
  } catch (const Error&) {
    // What cannot be read is no help.
  }
  std::ranges::reverse(steps);
  return steps;
}

// The number of a piece depends on which files were loaded before.
std::vector<ChunkId> bad_chunks_of(const StoredCheckpoint& checkpoint, const Draft& draft) {
  std::vector<ChunkId> bad;
  const std::vector<TensorEntry>& tensors = checkpoint.manifest.tensors;
  for (const auto& [tensor, piece] :
       pieces_in_file(tensors, static_cast<std::size_t>(draft.file))) {
    const PieceEntry entry = tensors[tensor].pieces[piece];
    const std::int64_t chunks = num_chunks(entry);
    for (std::int64_t c = 0; c < chunks; ++c) {
      if (!std::ranges::binary_search(draft.bad, entry.first_chunk + c)) continue;
      bad.push_back({tensor, piece, c});
    }
  }
  return bad;
}

ChunkBytes bytes_of(const StoredCheckpoint& checkpoint, const ChunkId& id) {
  const ChunkRecord& record = checkpoint.record(id);
  return {checkpoint.file_name(checkpoint.file_of(id)), record.address, record.stored_bytes,
          record.hash};
}

/// Copies bytes [begin, end) but for the pages that cannot be read. A file that other steps link
/// has chunks that are none of this step's, which nobody has read; check_file() finds what is
/// missed.
void copy_readable(File& from, File& to, std::uint64_t begin, std::uint64_t end,
                   std::uint64_t block = kStagedBytes) {
  std::vector<std::byte> room;
  for (; begin < end; begin += room.size()) {
    room.resize(static_cast<std::size_t>(std::min(block - begin % block, end - begin)));
    try {
      from.read_at(begin, room.data(), room.size());
    } catch (const Error& e) {
      if (e.code() != ErrorCode::io) throw;
      if (block > kPageBytes) copy_readable(from, to, begin, begin + room.size(), kPageBytes);
      continue;
    }
    to.write_at(begin, room.data(), room.size());
  }
}

/// One call of mend().
class Mending {
 public:
  Mending(const ProcessGroup& group, FileSystem& file_system, const MendingSources& sources,
          const Manifest& manifest, const fs::path& staged, std::span<const Draft> drafts)
      : group_(group),
        files_(file_system),
        sources_(sources),
        manifest_(manifest),
        staged_(staged),
        drafts_(drafts),
        host_(file_system, sources.fast) {
    if (drafts_.empty()) return;
    draft_ = opened();
    std::map<std::size_t, DraftFile> files;
    for (const Draft& draft : drafts_) load(draft, files);
    for (const auto& [number, file] : files) bring(number, file);
  }

  Mended run();

 private:
  StoredCheckpoint opened() const {
    return unread_checkpoint({staged_, manifest_.step, files_.open_directory(staged_)}, manifest_);
  }
  const std::string& name_of(std::int64_t file) const {
    return manifest_.files[static_cast<std::size_t>(file)].name;
  }
  /// A draft's shard file, or one that it links.
  struct DraftFile {
    fs::path directory;
    std::vector<std::pair<std::uint64_t, std::uint64_t>> bad;  // begin and end of each chunk
  };
  void load(const Draft& draft, std::map<std::size_t, DraftFile>& files);
  void bring(std::size_t number, const DraftFile& file);
  fs::path unfinished(std::size_t number) const {
    return staged_ / (draft_.file_name(number) + ".mended");
  }
  bool put(const ChunkId& id, std::span<const std::byte> bytes, const std::string& from);
  void look_on_this_host();
  std::vector<ChunkAsk> next_asks() const;
  bool ask_all();
  std::vector<ProcessGroup::Outgoing> answers(std::span<const std::vector<ChunkAsk>> asks,
                                              std::span<const int> answering,
                                              std::map<std::size_t, HostChunks::Found> found) const;
  void take_answers(std::span<const int> answering, std::span<const int> from,
                    std::span<const Bytes> heard);
  void look_in_durable();
  void finish();

  const ProcessGroup& group_;
  FileSystem& files_;
  const MendingSources& sources_;
  const Manifest& manifest_;
  const fs::path& staged_;
  const std::span<const Draft> drafts_;
  HostChunks host_;
  StoredCheckpoint draft_;
  std::vector<ChunkId> wanted_;                                    // not asked for yet
  std::vector<ChunkId> nowhere_;                                   // on no host
  std::map<std::size_t, std::unique_ptr<File>> mended_;            // files with bad chunks
  std::map<std::pair<std::size_t, std::string>, int> sources_of_;  // file and source: chunks
  std::string problem_;
};

void Mending::load(const Draft& draft, std::map<std::size_t, DraftFile>& files) {
  const auto number = static_cast<std::size_t>(draft.file);
  const std::shared_ptr<File> file = files_.open(draft.directory / name_of(draft.file));
  add_file_tables(draft_, number,
                  read_file_tables(*file, draft.directory, draft_.manifest.files[number]));
  files.try_emplace(number, DraftFile{draft.directory, {}});
  for (const std::size_t linked : draft_.linked_of[number]) {
    files.try_emplace(linked, DraftFile{draft.directory, {}});
  }
  for (const ChunkId& id : bad_chunks_of(draft_, draft)) {
    const ChunkRecord& record = draft_.record(id);
    files.at(draft_.file_of(id))
        .bad.emplace_back(record.address, record.address + record.stored_bytes);
    wanted_.push_back(id);
  }
}

/// Brings the file to the directory `staged`: a file with bad chunks as a copy without them, to be
/// completed; any other by a second name, so that steps still share it.
void Mending::bring(std::size_t number, const DraftFile& file) {
  const fs::path path = file.directory / draft_.file_name(number);
  if (file.bad.empty()) {
    if (file.directory == staged_) return;
    try {
      return files_.link(path, staged_ / path.filename());
    } catch (const Error&) {
      // It is copied.
    }
  }
  const std::shared_ptr<File> from = files_.open(path);
  std::unique_ptr<File>& to = mended_[number];
  to = files_.create(unfinished(number), Caching::cached);
  to->resize(draft_.file_bytes(number));
  auto bad = file.bad;
  std::ranges::sort(bad);
  std::uint64_t at = 0;
  for (const auto& [begin, end] : bad) {
    copy_readable(*from, *to, at, begin);
    at = std::max(at, end);
  }
  copy_readable(*from, *to, at, draft_.file_bytes(number));
}

bool Mending::put(const ChunkId& id, std::span<const std::byte> bytes, const std::string& from) {
  if (!are_stored_bytes({draft_, id, std::nullopt}, bytes)) return false;
  const std::size_t number = draft_.file_of(id);
  mended_.at(number)->write_at(draft_.record(id).address, bytes.data(), bytes.size());
  ++sources_of_[{number, from}];
  return true;
}

void Mending::look_on_this_host() {
  std::erase_if(wanted_, [&](const ChunkId& id) {
    const auto found = host_.find(bytes_of(draft_, id));
    return found && put(id, found->bytes, found->from);
  });
}

// One at least, if any is left.
std::vector<ChunkAsk> Mending::next_asks() const {
  const std::uint64_t most = kAskedBytes / static_cast<std::uint64_t>(group_.size());
  std::vector<ChunkAsk> asks;
  std::uint64_t bytes = 0;
  for (const ChunkId& id : wanted_) {
    const ChunkRecord& record = draft_.record(id);
    bytes += record.stored_bytes;
    if (!asks.empty() && bytes > most) break;
    asks.push_back({draft_.tensor(id).pieces.file(id.piece), record.address, record.stored_bytes,
                    record.hash});
  }
  return asks;
}

/// One round: all tell what they want, then what they have of it; the first that has a chunk sends
/// it. False if nobody wants anything.
bool Mending::ask_all() {
  std::vector<std::vector<ChunkAsk>> asks;
  std::size_t total = 0, first_own = 0;
  for (const Bytes& message : group_.all_gather(encode(next_asks()))) {
    if (std::ssize(asks) == group_.rank()) first_own = total;
    asks.push_back(decode_asks(message, std::ssize(manifest_.files)));
    total += asks.back().size();
  }
  if (total == 0) return false;
  std::map<std::size_t, HostChunks::Found> found;
  Bytes have(total, std::byte{0});
  std::size_t number = 0;
  for (int rank = 0; rank < group_.size(); ++rank) {
    for (const ChunkAsk& ask : asks[static_cast<std::size_t>(rank)]) {
      const std::size_t at = number++;
      if (rank == group_.rank()) continue;
      auto bytes = host_.find({name_of(ask.file), ask.address, ask.bytes, ask.hash});
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

/// For each rank that this one answers: the chunks that it sends, in the order in which they were
/// asked for.
std::vector<ProcessGroup::Outgoing> Mending::answers(
    std::span<const std::vector<ChunkAsk>> asks, std::span<const int> answering,
    std::map<std::size_t, HostChunks::Found> found) const {
  std::vector<ProcessGroup::Outgoing> outgoing;
  std::size_t number = 0;
  for (int rank = 0; rank < group_.size(); ++rank) {
    Packer packer;
    bool is_any = false;
    for (std::size_t left = asks[static_cast<std::size_t>(rank)].size(); left > 0; --left) {
      const std::size_t at = number++;
      if (answering[at] != group_.rank()) continue;
      const HostChunks::Found& chunk = found.at(at);
      packer.text(chunk.from);
      packer.text({reinterpret_cast<const char*>(chunk.bytes.data()), chunk.bytes.size()});
      is_any = true;
    }
    if (is_any) outgoing.push_back({rank, sealed(packer.take())});
  }
  return outgoing;
}

void Mending::take_answers(std::span<const int> answering, std::span<const int> from,
                           std::span<const Bytes> heard) {
  std::map<int, Unpacker> answers;
  for (std::size_t i = 0; i < from.size(); ++i) {
    answers.emplace(from[i], Unpacker::of_sealed(heard[i], "chunks that another process has sent"));
  }
  for (std::size_t i = 0; i < answering.size(); ++i) {
    const ChunkId& id = wanted_[i];
    bool is_right = false;
    if (answering[i] >= 0) {
      Unpacker& answer = answers.at(answering[i]);
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
  if (nowhere_.empty()) return;
  ChunkFinder finder(files_, newest_first(files_, sources_.durable));
  for (const ChunkId& id : nowhere_) {
    std::string why_not;
    const auto found = finder.find({draft_, id, std::nullopt}, why_not);
    if (found && put(id, found->bytes, found->from)) continue;
    problem_ = fmt::format("no good copy of {} is left: on no host, nor in the durable root, is {}",
                           draft_.file_name(draft_.file_of(id)), draft_.describe(id));
    return;
  }
}

void Mending::finish() {
  for (const auto& [number, file] : mended_) {
    file->sync();
    file->seal();
    file->close();
    const fs::path place = staged_ / draft_.file_name(number);
    files_.remove(place);  // the draft, if it was here
    files_.rename(unfinished(number), place);
  }
  if (drafts_.empty() || !problem_.empty()) return;
  StoredCheckpoint checkpoint = opened();
  for (const Draft& draft : drafts_) {
    try {
      check_file(checkpoint, static_cast<std::size_t>(draft.file));
    } catch (const Error& e) {
      problem_ = fmt::format("no good copy of {} is left: {}", name_of(draft.file), e.what());
      return;
    }
  }
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
  Packer packer;
  packer.number(std::uint64_t{asks.size()});
  for (const ChunkAsk& ask : asks) {
    packer.number(ask.file);
    packer.number(ask.address);
    packer.number(ask.bytes);
    packer.word(ask.hash);
  }
  return sealed(packer.take());
}

std::vector<ChunkAsk> decode_asks(std::span<const std::byte> message, std::int64_t files) {
  Unpacker unpacker = Unpacker::of_sealed(message, "which chunks another process needs");
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
            const Manifest& manifest, const fs::path& staged, std::span<const Draft> drafts) {
  return Mending(group, file_system, sources, manifest, staged, drafts).run();
}

std::vector<std::string> chunks_nowhere(FileSystem& file_system, const MendingSources& sources,
                                        const StoredCheckpoint& copy, const Draft& draft) {
  HostChunks host(file_system, sources.fast);
  ChunkFinder finder(file_system, newest_first(file_system, sources.durable));
  std::vector<std::string> nowhere;
  for (const ChunkId& id : bad_chunks_of(copy, draft)) {
    const WantedChunk wanted{copy, id, std::nullopt};
    const auto found = host.find(bytes_of(copy, id));
    std::string why_not;
    if (found && are_stored_bytes(wanted, found->bytes)) continue;
    if (finder.find(wanted, why_not)) continue;
    nowhere.push_back(copy.describe(id));
  }
  return nowhere;
}

}  // namespace shardwise::detail
