#include "shardwise/jobs/detail/save/file_transfer.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"
#include "shardwise/checkpoint/detail/record/packer.h"
#include "shardwise/checkpoint/detail/write/unchanged.h"
#include "shardwise/shard/error.h"

namespace shardwise::jobs_detail {
namespace {

constexpr std::uint64_t kTransferBytes = std::uint64_t{8} << 20;

// Transfers that can go at the same time, by their numbers: each process is in one of each at most.
std::vector<std::vector<std::size_t>> waves_of(std::span<const FileTransfer> transfers,
                                               int processes) {
  std::vector<std::size_t> sending(static_cast<std::size_t>(processes), 0),
      taking(static_cast<std::size_t>(processes), 0);  // the first wave that each is free in
  std::vector<std::vector<std::size_t>> waves;
  for (std::size_t i = 0; i < transfers.size(); ++i) {
    std::size_t& from = sending[static_cast<std::size_t>(transfers[i].from)];
    std::size_t& to = taking[static_cast<std::size_t>(transfers[i].to)];
    const std::size_t wave = std::max(from, to);
    if (wave == waves.size()) waves.emplace_back();
    waves[wave].push_back(i);
    from = to = wave + 1;
  }
  return waves;
}

// Each message ends in a byte that tells a part of the file from the sender's error.
constexpr std::byte kPart{1}, kProblem{0};

/// A file that is read to be sent. If it cannot be read, its messages say why.
class SentFile {
 public:
  SentFile(FileSystem& file_system, const std::filesystem::path& path) {
    attempt([&] { file_ = file_system.open(path); });
  }

  Bytes part(std::uint64_t at, std::uint64_t bytes) {
    Bytes message(bytes + 1, kPart);
    if (file_) attempt([&] { file_->read_at(at, message.data(), bytes); });
    if (file_) return message;
    const auto text = std::as_bytes(std::span(problem_));
    message.assign(text.begin(), text.end());
    message.push_back(kProblem);
    return message;
  }

 private:
  template <class Read>
  void attempt(Read&& read) {
    try {
      read();
    } catch (const Error& e) {
      file_ = nullptr;
      problem_ = e.what();
    }
  }

  std::unique_ptr<File> file_;
  std::string problem_;
};

/// A file that is written as its parts come.
class TakenFile {
 public:
  TakenFile(FileSystem& file_system, std::filesystem::path path)
      : file_system_(file_system), path_(std::move(path)) {
    file_system_.remove(path_);  // of a copy that was not good
    file_ = file_system_.create(path_, Caching::cached);
  }

  void put(std::uint64_t at, const Bytes& message, std::uint64_t expected) {
    if (!problem_.empty()) return;
    const std::size_t size = message.empty() ? 0 : message.size() - 1;
    if (!message.empty() && message.back() == kProblem) {
      problem_ = std::string(reinterpret_cast<const char*>(message.data()), size);
    } else if (size != expected) {
      problem_ = fmt::format("found {} bytes at {}, needed {}", size, at, expected);
    } else {
      file_->write_at(at, message.data(), size);
    }
  }

  /// Empty if all of it has come; else the file is removed, and this is why.
  const std::string& finish() {
    if (problem_.empty()) {
      file_->sync();
      file_->seal();
    }
    file_->close();
    if (!problem_.empty()) file_system_.remove(path_);
    return problem_;
  }

 private:
  FileSystem& file_system_;
  const std::filesystem::path path_;
  std::unique_ptr<File> file_;
  std::string problem_;
};

// The files that the shard file of this name, which has come, links.
std::vector<LinkedFile> linked_by(FileSystem& file_system, const std::filesystem::path& directory,
                                  const Manifest& manifest, const std::string& name) {
  const auto entry = std::ranges::find(manifest.files, name, &FileEntry::name);
  FileEntry its = *entry;
  const std::filesystem::path path = directory / name;
  read_linked_files(*file_system.open(path), path.string(), its);
  return its.linked;
}

// An earlier step has it as its own shard file, or as one that is linked there.
bool link_from(FileSystem& file_system, const std::filesystem::path& earlier,
               const std::string& shard_file, const LinkedFile& linked,
               const std::filesystem::path& target) {
  for (const std::string& name : {shard_file, linked.name()}) {
    const std::filesystem::path from = earlier / name;
    try {
      const std::unique_ptr<File> file = file_system.open(from);
      static_cast<void>(describe_linked_file(*file, from.string(), linked));
      if (link_file(file_system, *file, from, target / linked.name(), linked)) return true;
    } catch (const Error&) {
      // A file that cannot be read here is sent.
    }
  }
  return false;
}

}  // namespace

std::vector<FailedTransfer> transfer_files(
    const ProcessGroup& group, FileSystem& file_system, std::span<const FileTransfer> transfers,
    const std::function<std::filesystem::path(const std::string& name)>& source,
    const std::filesystem::path& target) {
  std::vector<FailedTransfer> failed;
  for (const std::vector<std::size_t>& wave : waves_of(transfers, group.size())) {
    std::uint64_t most = 0;
    const FileTransfer *sent = nullptr, *taken = nullptr;
    std::size_t number = 0;  // of the one that is taken
    for (const std::size_t i : wave) {
      const FileTransfer& transfer = transfers[i];
      most = std::max(most, transfer.bytes);
      if (transfer.from == group.rank()) sent = &transfer;
      if (transfer.to != group.rank()) continue;
      taken = &transfer;
      number = i;
    }
    std::optional<SentFile> in;
    std::optional<TakenFile> out;
    if (sent != nullptr) in.emplace(file_system, source(sent->name));
    if (taken != nullptr) out.emplace(file_system, target / taken->name);
    for (std::uint64_t at = 0; at < most; at += kTransferBytes) {
      const auto size = [at](const FileTransfer& transfer) {
        return std::min(kTransferBytes, transfer.bytes - at);
      };
      std::vector<ProcessGroup::Outgoing> outgoing;
      if (sent != nullptr && at < sent->bytes) {
        Bytes part = in->part(at, size(*sent));
        if (sent == taken) {
          out->put(at, part, size(*taken));
        } else {
          outgoing.push_back({sent->to, std::move(part)});
        }
      }
      std::vector<int> from;
      if (taken != nullptr && taken != sent && at < taken->bytes) from.push_back(taken->from);
      for (const Bytes& part : group.exchange(std::move(outgoing), from)) {
        out->put(at, part, size(*taken));
      }
    }
    if (!out) continue;
    if (const std::string& problem = out->finish(); !problem.empty()) {
      failed.push_back({number, problem});
    }
  }
  return failed;
}

Bytes encode(std::span<const LinkedWant> wants) {
  Packer packer;
  packer.number(std::uint64_t{wants.size()});
  for (const LinkedWant& want : wants) {
    packer.number(std::uint64_t{want.transfer});
    packer.hash(want.linked.description_hash);
    packer.number(want.linked.bytes);
    packer.number(want.linked.data_end);
  }
  return sealed(packer.take());
}

std::vector<LinkedWant> decode_linked_wants(std::span<const std::byte> message,
                                            std::span<const FileTransfer> transfers, int rank) {
  Unpacker unpacker = Unpacker::of_sealed(message, "which linked files another process needs");
  std::vector<LinkedWant> wants;
  for (std::uint64_t left = unpacker.number(); left > 0; --left) {
    LinkedWant& want = wants.emplace_back();
    want.transfer = unpacker.number();
    unpacker.require(want.transfer < transfers.size() && transfers[want.transfer].to == rank,
                     "found a file that it does not get");
    want.linked.description_hash = unpacker.hash();
    want.linked.bytes = unpacker.number();
    want.linked.data_end = unpacker.number();
  }
  unpacker.end();
  return wants;
}

TakenShardFiles transfer_shard_files(
    const ProcessGroup& group, FileSystem& file_system, const Manifest& manifest,
    std::span<const FileTransfer> transfers,
    const std::function<std::filesystem::path(const std::string& name)>& source,
    const std::filesystem::path& target, const std::filesystem::path& earlier) {
  if (transfers.empty()) return {};
  TakenShardFiles taken;
  std::vector<FailedTransfer>& failed = taken.failed;
  failed = transfer_files(group, file_system, transfers, source, target);
  for (std::size_t i = 0; i < transfers.size(); ++i) {
    if (transfers[i].to != group.rank()) continue;
    if (std::ranges::find(failed, i, &FailedTransfer::number) != failed.end()) continue;
    try {
      for (const LinkedFile& linked : linked_by(file_system, target, manifest, transfers[i].name)) {
        const bool is_there =
            !earlier.empty() && link_from(file_system, earlier, transfers[i].name, linked, target);
        if (!is_there) taken.sent.push_back({i, linked});
      }
    } catch (const Error& e) {
      failed.push_back({i, e.what()});
    }
  }
  std::vector<std::size_t> shard_files;  // whose linked file each is
  std::vector<FileTransfer> linked;
  std::map<std::string, std::string> beside;  // a shard file, by the name of its linked file
  const std::vector<Bytes> messages = group.all_gather(encode(taken.sent));
  for (int rank = 0; rank < group.size(); ++rank) {
    for (const LinkedWant& want :
         decode_linked_wants(messages[static_cast<std::size_t>(rank)], transfers, rank)) {
      const FileTransfer& transfer = transfers[want.transfer];
      shard_files.push_back(want.transfer);
      linked.push_back({transfer.from, rank, want.linked.name(), want.linked.bytes});
      if (transfer.from == group.rank()) beside[want.linked.name()] = transfer.name;
    }
  }
  const auto linked_source = [&](const std::string& name) {
    return source(beside.at(name)).parent_path() / name;
  };
  for (FailedTransfer& one : transfer_files(group, file_system, linked, linked_source, target)) {
    failed.push_back({shard_files[one.number], std::move(one.problem)});
  }
  return taken;
}

}  // namespace shardwise::jobs_detail
