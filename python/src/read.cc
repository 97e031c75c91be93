#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "gil.h"
#include "parts.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/checkpoint/verify.h"
#include "shardwise/shard/error.h"
#include "work.h"

namespace shardwise::python {
namespace {

// Smaller reads are over before anyone wants to interrupt them.
constexpr std::size_t kLongReadBytes = std::size_t{16} << 20;

/// number of the tensor, begin, shape, address of row-major memory.
using TargetArgument = std::tuple<std::size_t, Ints, Ints, std::uintptr_t>;

/// Of values of which many in a row are the same: one Python object for all of those.
template <class Value>
class Last {
 public:
  template <class Make>
  nb::object object(const Value& value, const Make& make) {
    if (!object_.is_valid() || !(value == value_)) {
      value_ = value;
      object_ = make();
    }
    return object_;
  }
  nb::object object(const Value& value) {
    return object(value, [&] { return nb::cast(value); });
  }
  /// Of an optional: its text, or an empty one.
  nb::object text(const Value& value) {
    return object(value, [&] { return nb::cast(value ? value->to_string() : std::string()); });
  }

 private:
  Value value_{};
  nb::object object_;
};

/// What ends the read on this thread, as others may read from the same checkpoint.
thread_local const std::atomic<bool>* interrupts_this_thread = nullptr;

class Interruptible {
 public:
  explicit Interruptible(const std::atomic<bool>& interrupted) {
    interrupts_this_thread = &interrupted;
  }
  ~Interruptible() { interrupts_this_thread = nullptr; }
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;
};

class Reader {
 public:
  Reader(const std::string& path, bool pin, int threads, std::size_t memory) {
    const GilRelease released;
    ReadOptions options{.memory_budget_bytes = memory, .threads = threads, .pin = pin};
    // Called on the thread that reads.
    options.progress = [](const Progress&) {
      if (interrupts_this_thread != nullptr && *interrupts_this_thread) {
        throw Error(ErrorCode::cancelled, "it was interrupted");
      }
    };
    reader_ = std::make_shared<CheckpointReader>(path, options);
  }

  /// Kept while it is used, as another thread or a signal's handler may close it.
  std::shared_ptr<const CheckpointReader> get() const {
    process_.check("an open checkpoint");
    if (!reader_) throw Error(ErrorCode::invalid_argument, "this checkpoint is closed");
    return reader_;
  }

  void close() {
    std::shared_ptr<const CheckpointReader> dropped = std::move(reader_);
    const GilRelease released;
    dropped.reset();
  }

  List tensors() const {
    List tensors;
    Last<Shape> shape;
    Last<std::string> dtype;
    Last<std::optional<Mesh>> mesh;
    Last<std::optional<PartitionSpec>> spec;
    Last<std::optional<UnevenPolicy>> policy;
    const std::shared_ptr<const CheckpointReader> reader = get();
    for (const TensorInfo& info : reader->tensors()) {
      tensors.append(nb::make_tuple(
          info.name, dtype.object(std::string(name(info.dtype))),
          shape.object(info.shape, [&] { return nb::tuple(nb::cast(ints(info.shape))); }),
          mesh.text(info.sharding ? std::optional(info.sharding->mesh()) : std::nullopt),
          spec.text(info.sharding ? std::optional(info.sharding->spec()) : std::nullopt),
          policy.text(info.sharding ? info.sharding->policy() : UnevenPolicy()), info.chunks,
          info.stored_bytes));
    }
    return tensors;
  }

  /// Whole tensors by number, each to row-major memory at an address. With very many of them, lists
  /// of numbers cost less than the lists that read() takes.
  void read_whole(const std::vector<std::size_t>& numbers,
                  const std::vector<std::uintptr_t>& addresses) {
    std::shared_ptr<const CheckpointReader> reader = get();
    std::vector<BoxTarget> targets;
    targets.reserve(numbers.size());
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const Box whole = Box::whole(tensor(*reader, numbers[i]).shape);
      targets.push_back(target(*reader, numbers[i], whole, addresses.at(i)));
    }
    read_all(std::move(reader), targets);
  }

  void read(const std::vector<TargetArgument>& arguments) {
    std::shared_ptr<const CheckpointReader> reader = get();
    std::vector<BoxTarget> targets;
    targets.reserve(arguments.size());
    for (const auto& [number, begin, shape, address] : arguments) {
      targets.push_back(target(*reader, number, box_of(begin, shape), address));
    }
    read_all(std::move(reader), targets);
  }

  std::tuple<std::int64_t, std::size_t, std::size_t> stats() const {
    const ReadStats stats = get()->stats();
    return {stats.chunks, stats.stored_bytes, stats.decoded_bytes};
  }

 private:
  static const TensorInfo& tensor(const CheckpointReader& reader, std::size_t number) {
    if (number < reader.tensors().size()) return reader.tensors()[number];
    throw Error(ErrorCode::no_such_name, "there is no tensor of this number");
  }

  static BoxTarget target(const CheckpointReader& reader, std::size_t number, const Box& box,
                          std::uintptr_t address) {
    const std::size_t size = num_bytes(box.shape(), size_bytes(tensor(reader, number).dtype));
    return {number, box, {reinterpret_cast<std::byte*>(address), size}};
  }

  void read_all(std::shared_ptr<const CheckpointReader> kept,
                const std::vector<BoxTarget>& targets) {
    std::size_t bytes = 0;
    for (const BoxTarget& one : targets) bytes += one.out.size();
    if (bytes < kLongReadBytes) {
      const GilRelease released;
      const std::shared_ptr<const CheckpointReader> reader = std::move(kept);
      reader->read(targets);
      return;
    }
    std::atomic<bool> interrupted = false;
    Work work(nb::none(), &interrupted);
    work.run([&] {
      const std::shared_ptr<const CheckpointReader> reader = std::exchange(kept, nullptr);
      const Interruptible own(interrupted);
      reader->read(targets);
    });
  }

  OwnProcess process_;
  std::shared_ptr<const CheckpointReader> reader_;
};

nb::list list_of(const std::vector<Damage>& damage) {
  nb::list list;
  for (const Damage& one : damage) {
    list.append(nb::make_tuple(one.file, one.message, one.tensor, one.chunk));
  }
  return list;
}

nb::typed<nb::tuple, nb::any, nb::ellipsis> verify(const std::string& path, int threads,
                                                   nb::object progress) {
  Work work(std::move(progress));
  ReadOptions options{.threads = threads};
  options.progress = work.progress();
  const VerifyReport report = work.run([&] { return verify_checkpoint(path, options); });
  return nb::make_tuple(list_of(report.damage), list_of(report.unread), report.chunks,
                        report.bytes);
}

}  // namespace

void bind_read(nb::module_& module) {
  nb::class_<Reader>(module, "Reader")
      .def(nb::init<const std::string&, bool, int, std::size_t>(), nb::arg("path"),
           nb::arg("pin") = true, nb::arg("threads") = 0,
           nb::arg("memory") = std::size_t{256} << 20)
      .def("close", &Reader::close)
      .def("tensors", &Reader::tensors)
      .def("read", &Reader::read, nb::arg("targets"))
      .def("read_whole", &Reader::read_whole, nb::arg("numbers"), nb::arg("addresses"))
      .def_prop_ro("path", [](const Reader& self) { return self.get()->directory().string(); })
      .def_prop_ro("step", [](const Reader& self) { return self.get()->step(); })
      .def_prop_ro("user", [](const Reader& self) { return self.get()->user_json(); })
      .def_prop_ro("objects", [](const Reader& self) { return self.get()->objects_json(); })
      .def_prop_ro("pinned", [](const Reader& self) { return self.get()->pinned(); })
      .def_prop_ro("stats", &Reader::stats);
  module.def("verify", &verify, nb::arg("path"), nb::arg("threads") = 0,
             nb::arg("progress") = nb::none());
}

}  // namespace shardwise::python
