#include "shardwise/checkpoint/detail/tiers/file_transfer.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

namespace shardwise::detail {
namespace {

constexpr std::uint64_t kTransferBytes = std::uint64_t{8} << 20;

// Transfers that can go at the same time: each process is in one of each at most.
std::vector<std::vector<FileTransfer>> waves_of(std::span<const FileTransfer> transfers,
                                                int processes) {
  std::vector<std::size_t> sending(static_cast<std::size_t>(processes), 0),
      taking(static_cast<std::size_t>(processes), 0);  // the first wave that each is free in
  std::vector<std::vector<FileTransfer>> waves;
  for (const FileTransfer& transfer : transfers) {
    std::size_t& from = sending[static_cast<std::size_t>(transfer.from)];
    std::size_t& to = taking[static_cast<std::size_t>(transfer.to)];
    const std::size_t wave = std::max(from, to);
    if (wave == waves.size()) waves.emplace_back();
    waves[wave].push_back(transfer);
    from = to = wave + 1;
  }
  return waves;
}

}  // namespace

void transfer_files(const ProcessGroup& group, FileSystem& file_system,
                    std::span<const FileTransfer> transfers,
                    const std::function<std::filesystem::path(const std::string& name)>& source,
                    const std::filesystem::path& target) {
  for (const std::vector<FileTransfer>& wave : waves_of(transfers, group.size())) {
    std::uint64_t most = 0;
    const FileTransfer *sent = nullptr, *taken = nullptr;
    for (const FileTransfer& transfer : wave) {
      most = std::max(most, transfer.bytes);
      if (transfer.from == group.rank()) sent = &transfer;
      if (transfer.to == group.rank()) taken = &transfer;
    }
    std::unique_ptr<File> in, out;
    if (sent != nullptr) in = file_system.open(source(sent->name));
    std::filesystem::path unfinished;
    if (taken != nullptr) {
      unfinished = target / (taken->name + ".part");
      file_system.remove(unfinished);  // of one that died here
      out = file_system.create(unfinished, Caching::cached);
    }
    for (std::uint64_t at = 0; at < most; at += kTransferBytes) {
      std::vector<ProcessGroup::Outgoing> outgoing;
      if (sent != nullptr && at < sent->bytes) {
        Bytes part(std::min(kTransferBytes, sent->bytes - at));
        in->read_at(at, part.data(), part.size());
        if (sent == taken) {
          out->write_at(at, part.data(), part.size());
        } else {
          outgoing.push_back({sent->to, std::move(part)});
        }
      }
      std::vector<int> from;
      if (taken != nullptr && taken != sent && at < taken->bytes) from.push_back(taken->from);
      for (const Bytes& part : group.exchange(std::move(outgoing), from)) {
        out->write_at(at, part.data(), part.size());
      }
    }
    if (!out) continue;
    out->sync();
    out->close();
    file_system.rename(unfinished, target / taken->name);
  }
}

}  // namespace shardwise::detail
