#include "shardwise/runtime/process/mpi_transport.h"

#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <array>
#include <list>
#include <memory>
#include <span>
#include <thread>

#include "shardwise/runtime/process/transport.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/host/mutex.h"

namespace shardwise {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;
using std::chrono::milliseconds;

// A message is a header, then its bytes in parts whose lengths MPI can count. Messages that
// one rank sends to another under one tag keep their order.
constexpr int kHeaderTag = 1, kPartTag = 2;
constexpr std::size_t kPartBytes = std::size_t{1} << 30;

constexpr microseconds kFirstPause{20}, kLongestPause{1000};
constexpr milliseconds kLastFlush{10'000};

struct Header {
  std::uint64_t channel, number, bytes, is_abort;
};

void check_mpi(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  throw Error(ErrorCode::io, fmt::format("MPI: {}: {}", what, text.data()));
}

// Serialises all our calls: MPI may have been initialised for one thread at a time.
Mutex& mpi_mutex() {
  static Mutex mutex;
  return mutex;
}

/// Initialises MPI, unless that is done already.
class Session {
 public:
  static void begin() { static const Session session; }

  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

 private:
  Session() {
    int initialized = 0, level = MPI_THREAD_SINGLE;
    check_mpi(MPI_Initialized(&initialized), "ask whether it is initialised");
    if (initialized == 0) {
      check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level), "initialise");
      is_ours_ = true;
    } else {
      check_mpi(MPI_Query_thread(&level), "ask for its thread level");
    }
    if (level >= MPI_THREAD_SERIALIZED) return;
    throw Error(
        ErrorCode::unsupported,
        fmt::format("make a process group by MPI: it was initialised for {}, needed "
                    "MPI_THREAD_SERIALIZED or MPI_THREAD_MULTIPLE (MPI_Init_thread)",
                    level == MPI_THREAD_SINGLE ? "MPI_THREAD_SINGLE" : "MPI_THREAD_FUNNELED"));
  }
  ~Session() {
    int finalized = 0;
    if (is_ours_ && MPI_Finalized(&finalized) == MPI_SUCCESS && finalized == 0) MPI_Finalize();
  }

  bool is_ours_ = false;
};

/// A message on its way. MPI accesses the bytes until all requests are complete.
struct Message {
  int rank;
  Header header;
  std::vector<std::byte> bytes;
  std::vector<MPI_Request> requests = {};

  bool is_complete() {
    int done = 0;
    check_mpi(
        MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE),
        "complete a message");
    return done != 0;
  }

  /// Calls start(at, count) for the parts of the bytes.
  template <class Start>
  void start_parts(Start start) {
    for (std::size_t begin = 0; begin < bytes.size(); begin += kPartBytes) {
      start(bytes.data() + begin, static_cast<int>(std::min(kPartBytes, bytes.size() - begin)));
    }
  }
};

class MpiTransport final : public Transport {
 public:
  explicit MpiTransport(MPI_Comm communicator) {
    const MutexLock lock(mpi_mutex());
    check_mpi(MPI_Comm_dup(communicator, &communicator_), "duplicate the communicator");
    check_mpi(MPI_Comm_set_errhandler(communicator_, MPI_ERRORS_RETURN), "set the error handler");
    check_mpi(MPI_Comm_rank(communicator_, &rank_), "ask for the rank");
    check_mpi(MPI_Comm_size(communicator_, &size_), "ask for the size");
  }

  ~MpiTransport() override {
    int finalized = 0;
    if (MPI_Finalized(&finalized) != MPI_SUCCESS || finalized != 0) return;
    bool is_done = false;
    try {
      is_done = flush(kLastFlush) && incoming_->empty();
    } catch (const Error&) {  // not done
    }
    if (!is_done) {  // MPI still reads and writes their bytes
      (void)outgoing_.release();
      (void)incoming_.release();
    }
    const MutexLock lock(mpi_mutex());
    MPI_Comm_free(&communicator_);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void send(int to, const MessageKey& key, std::vector<std::byte> bytes) override {
    const Header header{key.channel, key.number, bytes.size(), 0};
    const MutexLock lock(mpi_mutex());
    start({to, header, std::move(bytes)});
  }

  std::optional<ReceivedMessage> receive_any(std::span<const AwaitedMessage> awaited,
                                             microseconds wait) override {
    std::optional<ReceivedMessage> message;
    poll_until(wait, [&] {
      message = mailbox_.take_any(awaited, microseconds(0));
      return message || std::any_of(awaited.begin(), awaited.end(), [&](const auto& one) {
               return mailbox_.aborted(one.key.channel).has_value();
             });
    });
    return message;
  }

  void abort(std::uint64_t channel, const std::string& reason) noexcept override {
    try {
      mailbox_.abort(channel, reason);
      const auto text = std::as_bytes(std::span(reason));
      const MutexLock lock(mpi_mutex());
      for (int rank = 0; rank < size_; ++rank) {
        if (rank == rank_) continue;
        start({rank, {channel, 0, text.size(), 1}, {text.begin(), text.end()}});
      }
      progress();
    } catch (...) {
      // Others wait for their deadlines.
    }
  }

  std::optional<std::string> aborted(std::uint64_t channel) override {
    {
      const MutexLock lock(mpi_mutex());
      progress();
    }
    return mailbox_.aborted(channel);
  }

  bool flush(milliseconds wait) override {
    return poll_until(wait, [this] {
      const MutexLock lock(mpi_mutex());
      return outgoing_->empty();
    });
  }

 private:
  // Requires the mutex.
  void start(Message message) {
    Message& kept = outgoing_->emplace_back(std::move(message));
    kept.requests.push_back(MPI_REQUEST_NULL);
    check_mpi(MPI_Isend(&kept.header, sizeof kept.header, MPI_BYTE, kept.rank, kHeaderTag,
                        communicator_, &kept.requests.back()),
              "send");
    kept.start_parts([&](std::byte* at, int count) {
      kept.requests.push_back(MPI_REQUEST_NULL);
      check_mpi(
          MPI_Isend(at, count, MPI_BYTE, kept.rank, kPartTag, communicator_, &kept.requests.back()),
          "send");
    });
  }

  // Takes messages that have come, and releases those that were sent. Requires the mutex.
  void progress() {
    for (;;) {
      int found = 0;
      MPI_Message matched = MPI_MESSAGE_NULL;
      MPI_Status status;
      check_mpi(MPI_Improbe(MPI_ANY_SOURCE, kHeaderTag, communicator_, &found, &matched, &status),
                "look for messages");
      if (found == 0) break;
      Message& message = incoming_->emplace_back(Message{status.MPI_SOURCE, {}, {}});
      check_mpi(MPI_Mrecv(&message.header, sizeof message.header, MPI_BYTE, &matched, &status),
                "receive");
      message.bytes.resize(message.header.bytes);
      message.start_parts([&](std::byte* at, int count) {
        message.requests.push_back(MPI_REQUEST_NULL);
        check_mpi(MPI_Irecv(at, count, MPI_BYTE, message.rank, kPartTag, communicator_,
                            &message.requests.back()),
                  "receive");
      });
    }
    for (auto at = incoming_->begin(); at != incoming_->end();) {
      if (!at->is_complete()) {
        ++at;
        continue;
      }
      if (at->header.is_abort != 0) {
        mailbox_.abort(
            at->header.channel,
            std::string(reinterpret_cast<const char*>(at->bytes.data()), at->bytes.size()));
      } else {
        mailbox_.put(at->rank, {at->header.channel, at->header.number}, std::move(at->bytes));
      }
      at = incoming_->erase(at);
    }
    std::erase_if(*outgoing_, [](Message& message) { return message.is_complete(); });
  }

  /// Returns whether the condition became true in time.
  template <class Condition>
  bool poll_until(microseconds wait, Condition condition) {
    const auto end = Clock::now() + wait;
    microseconds pause = kFirstPause;
    for (;;) {
      {
        const MutexLock lock(mpi_mutex());
        progress();
      }
      if (condition()) return true;
      if (Clock::now() >= end) return false;
      std::this_thread::sleep_for(pause);
      pause = std::min(pause * 2, kLongestPause);
    }
  }

  MPI_Comm communicator_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1;
  // A message stays in its place, because MPI holds pointers to its bytes.
  std::unique_ptr<std::list<Message>> outgoing_ = std::make_unique<std::list<Message>>();
  std::unique_ptr<std::list<Message>> incoming_ = std::make_unique<std::list<Message>>();
  Mailbox mailbox_;
};

}  // namespace

std::shared_ptr<Transport> mpi_transport() {
  Session::begin();
  return std::make_shared<MpiTransport>(MPI_COMM_WORLD);
}

std::shared_ptr<Transport> mpi_transport(int fortran_communicator) {
  Session::begin();
  return std::make_shared<MpiTransport>(MPI_Comm_f2c(fortran_communicator));
}

}  // namespace shardwise
