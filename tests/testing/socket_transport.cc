#include "testing/socket_transport.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

bool read_exactly(int socket, void* out, std::size_t bytes) {
  auto* at = static_cast<char*>(out);
  while (bytes > 0) {
    const ssize_t got = ::read(socket, at, bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

bool write_exactly(int socket, const void* from, std::size_t bytes) {
  const auto* at = static_cast<const char*>(from);
  while (bytes > 0) {
    const ssize_t put = ::send(socket, at, bytes, MSG_NOSIGNAL);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    at += put;
    bytes -= static_cast<std::size_t>(put);
  }
  return true;
}

}  // namespace

struct SocketTransport::Frame {
  std::uint64_t is_abort;
  MessageKey key;
  std::uint64_t bytes;
};

struct SocketTransport::Held {
  int from;
  Frame frame;
  std::vector<std::byte> bytes;
};

SocketTransport::SocketTransport(int rank, std::vector<int> sockets, SocketFaults faults)
    : rank_(rank),
      sockets_(std::move(sockets)),
      faults_(std::move(faults)),
      writing_(sockets_.size()),
      random_(faults_.reorder_seed) {
  if (::pipe(wake_) != 0) throw std::runtime_error("pipe failed");
  reader_ = std::thread([this] { read_all(); });
}

SocketTransport::~SocketTransport() {
  close();
  static_cast<void>(::write(wake_[1], "x", 1));
  reader_.join();
  for (const int socket : sockets_) {
    if (socket >= 0) ::close(socket);
  }
  ::close(wake_[0]);
  ::close(wake_[1]);
}

void SocketTransport::close() {
  for (const int socket : sockets_) {
    if (socket >= 0) ::shutdown(socket, SHUT_RDWR);
  }
}

void SocketTransport::send(int to, const MessageKey& key, std::vector<std::byte> bytes) {
  const std::int64_t number = ++sent_;
  sent_bytes_ += static_cast<std::int64_t>(bytes.size());
  if (number == faults_.stop) faults_.stop_now();
  if (number == faults_.lose) return;
  write_frame(to, key, false, bytes);
}

void SocketTransport::write_frame(int to, const MessageKey& key, bool is_abort,
                                  std::span<const std::byte> bytes) {
  const auto peer = static_cast<std::size_t>(to);
  const Frame frame{is_abort ? 1u : 0u, key, bytes.size()};
  const std::lock_guard lock(writing_[peer]);
  if (!write_exactly(sockets_[peer], &frame, sizeof frame) ||
      !write_exactly(sockets_[peer], bytes.data(), bytes.size())) {
    throw Error(ErrorCode::io, fmt::format("rank {} has gone: {}", to, std::strerror(errno)));
  }
}

std::optional<ReceivedMessage> SocketTransport::receive_any(std::span<const AwaitedMessage> awaited,
                                                            std::chrono::microseconds wait) {
  release(false);
  if (faults_.reorder_seed != 0) wait = std::min(wait, std::chrono::microseconds(2000));
  auto message = mailbox_.take_any(awaited, wait);
  if (!message) release(true);
  return message;
}

void SocketTransport::abort(std::uint64_t channel, const std::string& reason) noexcept {
  mailbox_.abort(channel, reason);
  for (int rank = 0; rank < size(); ++rank) {
    if (rank == rank_) continue;
    try {
      write_frame(rank, {channel, 0}, true, std::as_bytes(std::span(reason)));
    } catch (...) {
      // It has gone.
    }
  }
}

void SocketTransport::read_all() {
  std::vector<pollfd> polled;
  for (const int socket : sockets_) polled.push_back({socket, POLLIN, 0});
  polled.push_back({wake_[0], POLLIN, 0});
  for (;;) {
    if (::poll(polled.data(), polled.size(), -1) < 0 && errno != EINTR) return;
    if (polled.back().revents != 0) return;
    for (std::size_t peer = 0; peer + 1 < polled.size(); ++peer) {
      if (polled[peer].revents == 0 || read_frame(static_cast<int>(peer))) continue;
      polled[peer].fd = -1;
      release(true);
      mailbox_.gone(static_cast<int>(peer), "its socket was closed");
    }
  }
}

bool SocketTransport::read_frame(int from) {
  const int socket = sockets_[static_cast<std::size_t>(from)];
  Held held{.from = from, .frame = {}, .bytes = {}};
  if (!read_exactly(socket, &held.frame, sizeof held.frame)) return false;
  held.bytes.resize(held.frame.bytes);
  if (!read_exactly(socket, held.bytes.data(), held.bytes.size())) return false;
  if (faults_.reorder_seed == 0) {
    deliver(std::move(held));
    return true;
  }
  const std::lock_guard lock(holding_);
  held_.push_back(std::move(held));
  return true;
}

void SocketTransport::deliver(Held held) {
  if (held.frame.is_abort != 0) {
    mailbox_.abort(
        held.frame.key.channel,
        std::string(reinterpret_cast<const char*>(held.bytes.data()), held.bytes.size()));
  } else {
    mailbox_.put(held.from, held.frame.key, std::move(held.bytes));
  }
}

// Lets some or all of the messages that are kept back come, in any order.
void SocketTransport::release(bool all) {
  const std::lock_guard lock(holding_);
  std::shuffle(held_.begin(), held_.end(), random_);
  while (!held_.empty() && (all || random_() % 2 == 0)) {
    deliver(std::move(held_.back()));
    held_.pop_back();
  }
}

std::vector<std::vector<int>> socket_mesh(int ranks) {
  const auto n = static_cast<std::size_t>(ranks);
  std::vector<std::vector<int>> mesh(n, std::vector<int>(n, -1));
  for (std::size_t a = 0; a < n; ++a) {
    for (std::size_t b = a + 1; b < n; ++b) {
      std::array<int, 2> pair{};
      if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()) != 0) {
        throw std::runtime_error("socketpair failed");
      }
      mesh[a][b] = pair[0];
      mesh[b][a] = pair[1];
    }
  }
  return mesh;
}

std::vector<std::string> run_ranks(
    int ranks, const std::function<SocketFaults(int)>& faults,
    const std::function<void(std::shared_ptr<SocketTransport>)>& run) {
  auto mesh = socket_mesh(ranks);
  std::vector<std::string> errors(mesh.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto number = static_cast<std::size_t>(rank);
    threads.emplace_back([&, rank, number] {
      std::shared_ptr<SocketTransport> transport;
      SocketFaults own = faults ? faults(rank) : SocketFaults();
      if (own.stop != 0 && !own.stop_now) {
        own.stop_now = [&] {
          transport->close();
          throw std::runtime_error("stopped");
        };
      }
      transport = std::make_shared<SocketTransport>(rank, mesh[number], std::move(own));
      try {
        run(transport);
      } catch (const std::exception& e) {
        errors[number] = e.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

}  // namespace shardwise
