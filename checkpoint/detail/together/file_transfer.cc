#include "shardwise/checkpoint/detail/together/file_transfer.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "shardwise/shard/error.h"

namespace shardwise::detail {
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

/// A file that is read to be sent. When it cannot be read, its parts are empty.
class SentFile {
 public:
  SentFile(FileSystem& file_system, const std::filesystem::path& path) {
    attempt([&] { file_ = file_system.open(path); });
  }

  Bytes part(std::uint64_t at, std::uint64_t bytes) {
    Bytes part(bytes);
    if (file_) attempt([&] { file_->read_at(at, part.data(), part.size()); });
    return file_ ? std::move(part) : Bytes();
  }

 private:
  template <class Read>
  void attempt(Read&& read) {
    try {
      read();
    } catch (const Error&) {
      file_ = nullptr;
    }
  }

  std::unique_ptr<File> file_;
};

/// A file that is written as its parts come.
class TakenFile {
 public:
  TakenFile(FileSystem& file_system, std::filesystem::path path)
      : file_system_(file_system), path_(std::move(path)) {
    file_system_.remove(path_);  // of a copy that was not good
    file_ = file_system_.create(path_, Caching::cached);
  }

  void put(std::uint64_t at, const Bytes& part, std::uint64_t expected) {
    arrives_ = arrives_ && part.size() == expected;
    if (arrives_) file_->write_at(at, part.data(), part.size());
  }

  /// Whether all of it has come; else it is removed.
  bool finish() {
    if (arrives_) file_->sync();
    file_->close();
    if (!arrives_) file_system_.remove(path_);
    return arrives_;
  }

 private:
  FileSystem& file_system_;
  const std::filesystem::path path_;
  std::unique_ptr<File> file_;
  bool arrives_ = true;
};

}  // namespace

std::vector<std::size_t> transfer_files(
    const ProcessGroup& group, FileSystem& file_system, std::span<const FileTransfer> transfers,
    const std::function<std::filesystem::path(const std::string& name)>& source,
    const std::filesystem::path& target) {
  std::vector<std::size_t> failed;
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
    if (out && !out->finish()) failed.push_back(number);
  }
  return failed;
}

}  // namespace shardwise::detail
