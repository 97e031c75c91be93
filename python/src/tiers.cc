#include "shardwise/tiers/tiers.h"

#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.h"
#include "gil.h"
#include "parts.h"
#include "python_source.h"
#include "shardwise/runtime/process/call_group.h"
#include "shardwise/runtime/process/transport.h"
#include "shardwise/shard/error.h"
#include "work.h"

namespace shardwise::python {
namespace {

using std::chrono::milliseconds;

double seconds_of(milliseconds time) { return std::chrono::duration<double>(time).count(); }

/// Messages that functions of Python's send. What has come from other processes, threads of
/// Python's put into the mailbox. Thread-safe.
class PythonTransport final : public Transport {
 public:
  /// send(to, channel, number, bytes) and abort(channel, reason) do not wait; flush(seconds) says
  /// whether all is sent.
  PythonTransport(int rank, int size, nb::object send, nb::object abort, nb::object flush)
      : rank_(rank),
        size_(size),
        send_(held(std::move(send))),
        abort_(held(std::move(abort))),
        flush_(held(std::move(flush))) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void send(int to, const MessageKey& key, std::vector<std::byte> bytes) override {
    call([&] { (*send_)(to, key.channel, key.number, python_bytes(bytes)); });
  }
  std::optional<ReceivedMessage> receive_any(std::span<const AwaitedMessage> awaited,
                                             std::chrono::microseconds wait) override {
    return mailbox_.take_any(awaited, wait);
  }
  void abort(std::uint64_t channel, const std::string& reason) noexcept override {
    try {
      mailbox_.abort(channel, reason);
      call([&] { (*abort_)(channel, reason); });
    } catch (...) {
      // The others wait until their deadline.
    }
  }
  std::optional<std::string> aborted(std::uint64_t channel) override {
    return mailbox_.aborted(channel);
  }
  bool flush(milliseconds wait) override {
    bool is_sent = false;
    call([&] { is_sent = nb::cast<bool>((*flush_)(seconds_of(wait))); });
    return is_sent;
  }

  Mailbox& mailbox() { return mailbox_; }

 private:
  template <class Call>
  void call(const Call& body) const {
    with_gil([&] {
      try {
        body();
      } catch (const nb::python_error& error) {
        throw Error(ErrorCode::io, "send to other processes: " + error_text(error.value()));
      }
    });
  }

  const int rank_, size_;
  const std::shared_ptr<nb::object> send_, abort_, flush_;
  Mailbox mailbox_;
};

/// What Python has of it.
struct Link {
  std::shared_ptr<PythonTransport> transport;

  Mailbox& mailbox() const { return transport->mailbox(); }
};

/// name, begin, shape.
using BoxArgument = std::tuple<std::string, Ints, Ints>;

class Tiers {
 private:
  // One thread at a time; the lock is taken without the GIL. A group that was aborted throws
  // cancelled, as if somebody had asked for it.
  template <class Body>
  auto run(Work& work, const Body& body) {
    process_.check("a TieredManager");
    if (!manager_) throw Error(ErrorCode::invalid_argument, "this manager is closed");
    const std::shared_ptr<TieredManager> manager = manager_;
    return work.run([&] {
      const std::lock_guard lock(using_);
      try {
        return body(*manager);
      } catch (const Error& error) {
        const auto ignored = [](const PythonRaised&, const std::string&) {};
        const bool is_own = work.is_cancelled() || if_python_raised(error, ignored);
        if (error.code() != ErrorCode::cancelled || is_own) throw;
        throw GroupError(error.what());
      }
    });
  }

 public:
  Tiers(const Link* link, const std::string& fast, const std::string& durable, double deadline,
        TierOptions options) {
    const std::shared_ptr<PythonTransport> transport = link ? link->transport : nullptr;
    const GilRelease released;
    if (transport) {
      options.group = ProcessGroup(
          transport, milliseconds(static_cast<std::int64_t>(1000 * std::min(deadline, 1e9))));
    }
    options.warn = warnings_.teller();
    manager_ = std::make_shared<TieredManager>(fast, durable, options);
  }
  ~Tiers() { drop(); }

  Dict save(std::int64_t step, const std::vector<Source*>& sources, const std::string& codec,
            const std::string& existing, std::string user, std::string objects, std::size_t memory,
            nb::object progress) {
    SaveOptions options{.codec = parse_codec(codec),
                        .user_json = std::move(user),
                        .objects_json = std::move(objects),
                        .existing = parse_existing(existing),
                        .memory_budget_bytes = memory};
    Work work(std::move(progress));
    options.progress = work.progress();
    return dict_of(run(work, [&](TieredManager& manager) {
      return manager.save(step, sources_of(sources), options);
    }));
  }

  /// needed(reader) gives boxes. Returns the step's tier, number and directory, and the steps that
  /// were taken, passed over, damaged and put right.
  nb::object latest(nb::object needed) {
    const std::shared_ptr<nb::object> function = held(std::move(needed));
    const auto boxes = [&](CheckpointReader step) {
      return with_gil([&] {
        try {
          std::vector<TensorBox> list;
          for (const auto& [name, begin, shape] :
               nb::cast<std::vector<BoxArgument>>((*function)(python_reader(std::move(step))))) {
            list.push_back({name, box_of(begin, shape)});
          }
          return list;
        } catch (const nb::python_error& error) {
          throw PythonRaised(error);
        }
      });
    };
    Work work{nb::none()};
    const auto found =
        run(work, [&](TieredManager& manager) { return manager.latest_as_needed(boxes); });
    if (!found) return nb::none();
    nb::dict dict;
    dict["tier"] = found->tier == Tier::fast ? "fast" : "durable";
    dict["step"] = found->step.step;
    dict["path"] = found->step.directory.string();
    dict["files_taken"] = found->files_taken;
    dict["bytes_taken"] = found->bytes_taken;
    dict["passed_over"] = found->passed_over;
    dict["damaged"] = found->damaged;
    dict["mended"] = found->mended;
    dict["text"] = found->to_string();
    return dict;
  }

  std::vector<std::string> take_warnings() { return warnings_.take(); }

  ManagerStatsTuple stats(bool durable) const {
    process_.check("a TieredManager");
    if (!manager_) throw Error(ErrorCode::invalid_argument, "this manager is closed");
    return members_of(durable ? manager_->durable().stats() : manager_->stats());
  }

  /// Waits for the work under way, and throws its error. The manager is then closed in any case.
  void close() {
    if (!manager_) return;
    try {
      Work work{nb::none()};
      run(work, [](TieredManager& manager) { manager.close(); });
    } catch (...) {
      drop();
      throw;
    }
    drop();
  }

 private:
  // The drain's thread, which it joins, may need the GIL.
  void drop() {
    std::shared_ptr<TieredManager> dropped = std::move(manager_);
    if (!process_.is_own()) {
      new std::shared_ptr<TieredManager>(std::move(dropped));  // its threads are the parent's
      return;
    }
    const GilRelease released;
    dropped.reset();
  }

  OwnProcess process_;
  std::mutex using_;
  Warnings warnings_;  // before the manager, which tells of them
  std::shared_ptr<TieredManager> manager_;
};

}  // namespace

void bind_tiers(nb::module_& module) {
  nb::class_<Link>(module, "Link")
      .def(
          "__init__",
          [](Link* self, int rank, int size, nb::object send, nb::object abort, nb::object flush) {
            new (self) Link{std::make_shared<PythonTransport>(rank, size, std::move(send),
                                                              std::move(abort), std::move(flush))};
          },
          nb::arg("rank"), nb::arg("size"), nb::arg("send"), nb::arg("abort"), nb::arg("flush"))
      .def(
          "put",
          [](const Link& self, int from, std::uint64_t channel, std::uint64_t number,
             const nb::bytes& message) {
            const auto* const data = static_cast<const std::byte*>(message.data());
            self.mailbox().put(from, {channel, number}, {data, data + message.size()});
          },
          nb::arg("from_rank"), nb::arg("channel"), nb::arg("number"), nb::arg("message"))
      .def(
          "aborted",
          [](const Link& self, std::uint64_t channel, const std::string& reason) {
            self.mailbox().abort(channel, reason);
          },
          nb::arg("channel"), nb::arg("reason"))
      .def(
          "gone",
          [](const Link& self, int rank, const std::string& why) {
            self.mailbox().gone(rank, why);
          },
          nb::arg("rank"), nb::arg("why"));
  nb::class_<Tiers>(module, "Tiers")
      .def(
          "__init__",
          [](Tiers* self, const Link* link, const std::string& fast, const std::string& durable,
             double deadline, int copies, int processes_per_host, std::int64_t keep_fast,
             std::int64_t drain_every, std::int64_t drain_bytes_per_second,
             std::int64_t keep_durable, const std::string& fast_codec, int threads,
             std::int64_t devices, const std::string& on_save_error,
             std::int64_t most_failed_saves) {
            new (self)
                Tiers(link, fast, durable, deadline,
                      {.local = {.copies = copies, .processes_per_host = processes_per_host},
                       .keep = {.fast = keep_fast, .durable = keep_durable},
                       .drain = {.every = drain_every, .bytes_per_second = drain_bytes_per_second},
                       .write = {.fast_codec = parse_codec(fast_codec),
                                 .on_save_error = on_save_error_of(on_save_error),
                                 .most_failed_saves = most_failed_saves,
                                 .threads = threads},
                       .devices = devices});
          },
          nb::arg("link").none(), nb::arg("fast"), nb::arg("durable"), nb::arg("deadline"),
          nb::arg("copies"), nb::arg("processes_per_host"), nb::arg("keep_fast"),
          nb::arg("drain_every"), nb::arg("drain_bytes_per_second"), nb::arg("keep_durable"),
          nb::arg("fast_codec"), nb::arg("threads"), nb::arg("devices"), nb::arg("on_save_error"),
          nb::arg("most_failed_saves"))
      .def("save", &Tiers::save, nb::arg("step"), nb::arg("sources"), nb::arg("codec"),
           nb::arg("existing"), nb::arg("user"), nb::arg("objects"), nb::arg("memory"),
           nb::arg("progress") = nb::none())
      .def("latest", &Tiers::latest, nb::arg("needed"),
           nb::sig("def latest(self, needed: collections.abc.Callable[[Reader], list[tuple[str, "
                   "list[int], list[int]]]]) -> dict[str, typing.Any] | None"))
      .def("take_warnings", &Tiers::take_warnings)
      .def("stats", &Tiers::stats, nb::arg("durable"))
      .def("close", &Tiers::close);
}

}  // namespace shardwise::python
