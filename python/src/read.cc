#include <algorithm>
#include <atomic>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "gil.h"
#include "parts.h"
#include "python_tensors.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/convert/model.h"
#include "shardwise/reshape/edits.h"
#include "shardwise/shard/error.h"
#include "shardwise/tiers/tiers.h"
#include "work.h"

namespace shardwise::python {
namespace {

// Smaller reads are over before anyone wants to interrupt them.
constexpr std::size_t kLongReadBytes = std::size_t{16} << 20;

/// number of the tensor, begin, shape, address of row-major memory.
using TargetArgument = std::tuple<std::size_t, Ints, Ints, std::uintptr_t>;

/// number of the tensor, begin, shape.
using NumberedBox = std::tuple<std::size_t, Ints, Ints>;

/// Keeps the last value's Python object, so that a run of equal values shares one.
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
  /// The text of an optional; empty if it has none.
  nb::object text(const Value& value) {
    return object(value, [&] { return nb::cast(value ? value->to_string() : std::string()); });
  }

 private:
  Value value_{};
  nb::object object_;
};

/// A name of a checkpoint, and the number of its tensor, or -1 for a value that is no tensor.
using NamedNumber = std::tuple<std::string, std::int64_t>;

/// The tensors of a checkpoint under several names, and names of other values: all are edited
/// together.
class NamedTensors final : public BoxReader {
 public:
  NamedTensors(std::shared_ptr<const BoxReader> reader, const std::vector<NamedNumber>& names)
      : reader_(std::move(reader)) {
    const std::span<const TensorInfo> all = reader_->tensors();
    for (const auto& [name, number] : names) {
      const bool is_tensor = number >= 0 && as_size(number) < all.size();
      TensorInfo info;
      info.dtype = DType::c128;  // no cast of many tensors takes it
      if (is_tensor) info = all[as_size(number)];
      info.name = name;
      infos_.push_back(std::move(info));
      numbers_.push_back(is_tensor ? as_size(number) : all.size());
    }
  }

  std::span<const TensorInfo> tensors() const override { return infos_; }
  void read(std::size_t tensor, const Box& box, std::span<std::byte> out) const override {
    reader_->read(numbers_[tensor], box, out);
  }

  std::size_t number(std::size_t tensor) const { return numbers_[tensor]; }

 private:
  std::shared_ptr<const BoxReader> reader_;
  std::vector<TensorInfo> infos_;
  std::vector<std::size_t> numbers_;
};

/// The tensors that a reader gives: the checkpoint's, or edited ones.
struct Edited {
  std::shared_ptr<const NamedTensors> named;
  std::shared_ptr<const EditedTensors> tensors;
};

/// The flag that ends the read on this thread; other threads may read from the same checkpoint.
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

/// A reader of a checkpoint, or of a file or folder of another format, which has no objects.
class Reader {
 public:
  /// `partial`: shard files may be missing, and are opened when something of them is read.
  Reader(const std::string& path, bool pin, int threads, std::size_t memory, bool partial)
      : memory_(memory) {
    const GilRelease released;
    if (!std::filesystem::exists(std::filesystem::path(path) / "manifest.json") &&
        !model_format(path).empty()) {
      reader_ = std::make_shared<const ModelReader>(path);
      path_ = path;
      return;
    }
    ReadOptions options{.memory_budget_bytes = memory, .threads = threads, .pin = pin};
    // Called on the thread that reads.
    options.progress = [](const Progress&) {
      if (interrupts_this_thread != nullptr && *interrupts_this_thread) {
        throw Error(ErrorCode::cancelled, "it was interrupted");
      }
    };
    const TierStep step{.tier = partial ? Tier::fast : Tier::durable, .step = {0, 1, path}};
    keep(step.open(options));
  }
  explicit Reader(CheckpointReader reader) : memory_(0) { keep(std::move(reader)); }
  /// A reader of a format that Python reads.
  Reader(std::string path, std::shared_ptr<const PythonTensors> tensors, std::size_t memory)
      : memory_(memory), path_(std::move(path)), reader_(std::move(tensors)) {}

  /// Kept while it is used, as another thread or a signal's handler may close it.
  std::shared_ptr<const BoxReader> get() const {
    process_.check("an open checkpoint");
    if (!reader_) throw Error(ErrorCode::invalid_argument, "this checkpoint is closed");
    return reader_;
  }

  /// Null for another format.
  std::shared_ptr<const CheckpointReader> checkpoint() const {
    return std::dynamic_pointer_cast<const CheckpointReader>(get());
  }

  std::string path() const {
    get();
    return path_;
  }

  std::string user() const { return other_content().user_json; }

  std::string objects() const { return other_content().objects_json; }

  /// The entries of another format that are neither tensors nor objects.
  std::vector<std::string> left_out() const { return other_content().left_out; }

  void close() {
    std::shared_ptr<const BoxReader> dropped = std::move(reader_);
    std::shared_ptr<const Edited> edited = std::move(edited_);  // holds the reader, too
    const GilRelease released;
    edited.reset();
    dropped.reset();
  }

  List tensors() const { return rows_of(get()->tensors()); }

  /// From now on tensors are these: of each, as of tensors(), a row; which of `names` it is made
  /// of; whether it is one of them as a whole, its dims in their order; and the first that has the
  /// same elements.
  List edit(const std::vector<NamedNumber>& names, const EditArgument& argument) {
    const TensorEdits edits = edits_of(argument);
    auto edited = std::make_shared<Edited>();
    edited->named = std::make_shared<const NamedTensors>(get(), names);
    edited->tensors =
        std::make_shared<const EditedTensors>(edited->named, edits, "open " + path(), memory_ / 4);
    const std::span<const TensorInfo> infos = edited->tensors->tensors();
    const List rows = rows_of(infos);
    std::map<std::pair<std::size_t, DType>, std::vector<std::size_t>> by_first;
    List made;
    for (std::size_t t = 0; t < infos.size(); ++t) {
      auto boxes = edited->tensors->source_boxes(t, Box::whole(infos[t].shape));
      Ints places;
      bool is_whole =
          boxes.size() == 1 && boxes[0].order.empty() &&
          infos[t].shape == edited->named->tensors()[boxes[0].tensor].shape;  // not padded
      for (EditedTensors::SourceBox& box : boxes) {
        places.push_back(std::int64_t(box.tensor));
        is_whole = is_whole && box.box == Box::whole(edited->named->tensors()[box.tensor].shape);
        box.tensor = edited->named->number(box.tensor);
      }
      std::vector<std::size_t>& alike = by_first[{boxes[0].tensor, infos[t].dtype}];
      const auto same = std::ranges::find_if(alike, [&](std::size_t other) {
        auto others = edited->tensors->source_boxes(other, Box::whole(infos[other].shape));
        for (auto& box : others) box.tensor = edited->named->number(box.tensor);
        return others == boxes && infos[other].shape == infos[t].shape;
      });
      const std::size_t first = same == alike.end() ? t : *same;
      if (first == t) alike.push_back(t);
      made.append(nb::make_tuple(rows[t], nb::cast(places), is_whole, first));
    }
    edited_ = std::move(edited);
    return made;
  }

  /// Returns the reads of the checkpoint that boxes of the edited tensors need: names, and boxes of
  /// these.
  List source_boxes(const std::vector<NumberedBox>& boxes) const {
    const auto reader = get();
    const std::span<const TensorInfo> stored = reader->tensors();
    List found;
    const auto add = [&](std::size_t number, const Box& box) {
      found.append(nb::make_tuple(stored[number].name, ints(box.begin()), ints(box.shape())));
    };
    for (const auto& [number, begin, shape] : boxes) {
      tensor(*reader, number);
      const Box box = box_of(begin, shape);
      if (!edited_) {
        add(number, box);
        continue;
      }
      for (const auto& part : edited_->tensors->source_boxes(number, box)) {
        if (!part.box.empty()) add(edited_->named->number(part.tensor), part.box);
      }
    }
    return found;
  }

  /// Whole tensors by number, each to row-major memory at an address. With very many of them, lists
  /// of numbers cost less than the lists that read() takes.
  void read_whole(const std::vector<std::size_t>& numbers,
                  const std::vector<std::uintptr_t>& addresses) {
    Reading reading{get(), edited_, {}, {}};
    reading.targets.reserve(numbers.size());
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const Box whole = Box::whole(tensor(*reading.reader, numbers[i]).shape);
      add(reading, numbers[i], whole, addresses.at(i));
    }
    read_all(std::move(reading));
  }

  void read(const std::vector<TargetArgument>& arguments) {
    Reading reading{get(), edited_, {}, {}};
    reading.targets.reserve(arguments.size());
    for (const auto& [number, begin, shape, address] : arguments) {
      add(reading, number, box_of(begin, shape), address);
    }
    read_all(std::move(reading));
  }

  std::tuple<std::int64_t, std::size_t, std::size_t> stats() const {
    const auto known = checkpoint();
    const ReadStats stats = known ? known->stats() : ReadStats{};
    return {stats.chunks, stats.stored_bytes, stats.decoded_bytes};
  }

 private:
  /// The boxes of one read: those that are as in the checkpoint, and `changed` ones.
  struct Reading {
    std::shared_ptr<const BoxReader> reader;
    std::shared_ptr<const Edited> edited;
    std::vector<BoxTarget> targets, changed;

    void run() const {
      if (const auto* known = dynamic_cast<const CheckpointReader*>(reader.get())) {
        if (!targets.empty()) known->read(targets);
      } else {
        for (const auto& [number, box, out] : targets) {
          if (interrupts_this_thread != nullptr && *interrupts_this_thread) {
            throw Error(ErrorCode::cancelled, "it was interrupted");
          }
          reader->read(number, box, out);
        }
      }
      for (const auto& [number, box, out] : changed) {
        if (interrupts_this_thread != nullptr && *interrupts_this_thread) {
          throw Error(ErrorCode::cancelled, "it was interrupted");
        }
        edited->tensors->read(number, box, out);
      }
    }
  };

  OtherContent other_content() const {
    const auto reader = get();
    if (const auto* known = dynamic_cast<const CheckpointReader*>(reader.get())) {
      return {known->user_json(), known->objects_json(), {}};
    }
    if (const auto* read = dynamic_cast<const PythonTensors*>(reader.get())) return read->other();
    const auto& model = dynamic_cast<const ModelReader&>(*reader);
    return {model.user_json(), {}, {model.left_out().begin(), model.left_out().end()}};
  }

  static List rows_of(std::span<const TensorInfo> infos) {
    List rows;
    Last<Shape> shape;
    Last<std::string> dtype;
    Last<std::optional<Mesh>> mesh;
    Last<std::optional<PartitionSpec>> spec;
    Last<std::optional<UnevenPolicy>> policy;
    for (const TensorInfo& info : infos) {
      rows.append(nb::make_tuple(
          info.name, dtype.object(std::string(dtype_name(info))),
          shape.object(info.shape, [&] { return int_tuple(info.shape); }),
          mesh.text(info.sharding ? std::optional(info.sharding->mesh()) : std::nullopt),
          spec.text(info.sharding ? std::optional(info.sharding->spec()) : std::nullopt),
          policy.text(info.sharding ? info.sharding->policy() : UnevenPolicy()), info.chunks,
          info.stored_bytes));
    }
    return rows;
  }

  /// Information about the tensor that has this number now.
  const TensorInfo& tensor(const BoxReader& reader, std::size_t number) const {
    const std::span<const TensorInfo> infos =
        edited_ ? edited_->tensors->tensors() : reader.tensors();
    if (number < infos.size()) return infos[number];
    throw Error(ErrorCode::no_such_name, "there is no tensor of this number");
  }

  void add(Reading& reading, std::size_t number, const Box& box, std::uintptr_t address) const {
    const DType dtype = tensor(*reading.reader, number).dtype;
    const std::span<std::byte> out(reinterpret_cast<std::byte*>(address),
                                   num_bytes(box.shape(), size_bytes(dtype)));
    if (!edited_) return reading.targets.push_back({number, box, out});
    if (const auto same = edited_->tensors->same_in_source(number, box)) {
      reading.targets.push_back({edited_->named->number(same->tensor), same->box, out});
    } else {
      reading.changed.push_back({number, box, out});
    }
  }

  void read_all(Reading reading) {
    // On this thread, so that Python raises here if the user interrupts it.
    if (const auto* read = dynamic_cast<const PythonTensors*>(reading.reader.get())) {
      if (!reading.targets.empty()) read->read_here(reading.targets);
      reading.targets.clear();
    }
    std::size_t bytes = 0;
    for (const BoxTarget& one : reading.targets) bytes += one.out.size();
    for (const BoxTarget& one : reading.changed) bytes += one.out.size();
    if (bytes < kLongReadBytes) {
      const GilRelease released;
      const Reading own = std::move(reading);
      own.run();
      return;
    }
    std::atomic<bool> interrupted = false;
    Work work(nb::none(), &interrupted);
    work.run([&] {
      const Reading own = std::move(reading);
      const Interruptible interruptible(interrupted);
      own.run();
    });
  }

  void keep(CheckpointReader reader) {
    path_ = reader.directory().string();
    reader_ = std::make_shared<const CheckpointReader>(std::move(reader));
  }

  OwnProcess process_;
  const std::size_t memory_;
  std::string path_;
  std::shared_ptr<const BoxReader> reader_;
  std::shared_ptr<const Edited> edited_;
};

}  // namespace

std::shared_ptr<const BoxReader> tensors_of(nb::handle reader) {
  return nb::cast<const Reader&>(reader).get();
}

nb::object python_reader(CheckpointReader reader) {
  return nb::cast(new Reader(std::move(reader)), nb::rv_policy::take_ownership);
}

void bind_read(nb::module_& module) {
  nb::class_<Reader>(module, "Reader")
      .def(nb::init<const std::string&, bool, int, std::size_t, bool>(), nb::arg("path"),
           nb::arg("pin") = true, nb::arg("threads") = 0,
           nb::arg("memory") = std::size_t{256} << 20, nb::arg("partial") = false)
      .def_static(
          "of",
          [](const std::string& path, const std::vector<PythonTensors::Row>& tensors,
             nb::object read, const std::string& user, const std::string& objects,
             const std::vector<std::string>& left_out, std::size_t memory) {
            return new Reader(path,
                              std::make_shared<const PythonTensors>(
                                  tensors, std::move(read), OtherContent{user, objects, left_out}),
                              memory);
          },
          nb::arg("path"), nb::arg("tensors"), nb::arg("read"), nb::arg("user"), nb::arg("objects"),
          nb::arg("left_out"), nb::arg("memory"), nb::rv_policy::take_ownership)
      .def("close", &Reader::close)
      .def("tensors", &Reader::tensors)
      .def("edit", &Reader::edit, nb::arg("names"), nb::arg("edits"))
      .def("source_boxes", &Reader::source_boxes, nb::arg("boxes"),
           nb::sig("def source_boxes(self, boxes: collections.abc.Sequence[tuple[int, "
                   "collections.abc.Sequence[int], collections.abc.Sequence[int]]]) -> "
                   "list[tuple[str, list[int], list[int]]]"))
      .def("read", &Reader::read, nb::arg("targets"))
      .def("read_whole", &Reader::read_whole, nb::arg("numbers"), nb::arg("addresses"))
      .def_prop_ro("path", &Reader::path)
      .def_prop_ro("step",
                   [](const Reader& self) {
                     const auto known = self.checkpoint();
                     return known ? known->step() : -1;
                   })
      .def_prop_ro("user", &Reader::user)
      .def_prop_ro("objects", &Reader::objects)
      .def_prop_ro("left_out", &Reader::left_out)
      .def_prop_ro("pinned",
                   [](const Reader& self) {
                     const auto known = self.checkpoint();
                     return known && known->pinned();
                   })
      .def_prop_ro("stats", &Reader::stats);
}

}  // namespace shardwise::python
