#include "shardwise/runtime/process/store_transport.h"

#include <fmt/format.h>

#include "shardwise/runtime/process/detail/mailbox.h"
#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

using std::chrono::milliseconds;

class StoreTransport final : public Transport {
 public:
  explicit StoreTransport(KeyValueStore store) : store_(std::move(store)) {}

  int rank() const override { return store_.rank; }
  int size() const override { return store_.size; }

  void send(int to, const MessageKey& key, std::vector<std::byte> bytes) override {
    store_.set(name(key, store_.rank, to), bytes);
  }

  std::optional<std::vector<std::byte>> receive(int from, const MessageKey& key,
                                                milliseconds wait) override {
    const std::string message = name(key, from, store_.rank);
    auto bytes = store_.get(message, wait);
    if (bytes) store_.remove(message);
    return bytes;
  }

  void abort(std::uint64_t channel, const std::string& reason) noexcept override {
    try {
      own_.abort(channel, reason);
      if (store_.get(abort_name(channel), milliseconds(0))) return;
      store_.set(abort_name(channel), std::as_bytes(std::span(reason)));
    } catch (...) {
      // Another abort at the same time, or no store: the others wait for their deadlines.
    }
  }

  std::optional<std::string> aborted(std::uint64_t channel) override {
    if (auto reason = own_.aborted(channel)) return reason;
    const auto bytes = store_.get(abort_name(channel), milliseconds(0));
    if (!bytes) return {};
    own_.abort(channel, std::string(reinterpret_cast<const char*>(bytes->data()), bytes->size()));
    return own_.aborted(channel);
  }

  bool flush(milliseconds) override { return true; }

 private:
  std::string name(const MessageKey& key, int from, int to) const {
    return fmt::format("{}{}/{}/{}/{}", store_.prefix, key.channel, key.number, from, to);
  }
  std::string abort_name(std::uint64_t channel) const {
    return fmt::format("{}{}/abort", store_.prefix, channel);
  }

  KeyValueStore store_;
  Mailbox own_;  // the aborts that are known here
};

}  // namespace

void KeyValueStore::check() const {
  if (!set || !get || !remove) {
    throw Error(ErrorCode::invalid_argument,
                "make a process group: the store must have the functions set, get and remove");
  }
  if (size < 1 || rank < 0 || rank >= size) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("make a process group: the rank is {}, must be 0 to {}", rank, size - 1));
  }
}

std::shared_ptr<Transport> store_transport(KeyValueStore store) {
  store.check();
  return std::make_shared<StoreTransport>(std::move(store));
}

}  // namespace shardwise
