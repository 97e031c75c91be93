#include <nanobind/ndarray.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "gil.h"
#include "parts.h"
#include "python_source.h"
#include "shardwise/loader/host_loader.h"
#include "shardwise/shard/error.h"
#include "work.h"

namespace shardwise::python {
namespace {

/// field, sharding, buckets, whether to truncate.
using PlacementArgument = std::tuple<std::string, Sharding, Ints, bool>;

/// Memory that Python keeps as long as it has an array on it.
nb::object array_of(const HostPart& part) {
  using Bytes = nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>;
  auto keeper = std::make_unique<std::shared_ptr<std::byte>>(part.data);
  const nb::capsule owner(keeper.get(), [](void* held) noexcept {
    delete static_cast<std::shared_ptr<std::byte>*>(held);
  });
  std::byte* const data = keeper.release()->get();
  return nb::cast(Bytes(data, {part.bytes}, owner));
}

/// The whole's shape, and per position of this process (position, begin, shape, bytes).
nb::tuple parts_of(const HostArray& array) {
  nb::list list;
  for (const HostPart& part : array.parts) {
    list.append(nb::make_tuple(part.position, ints(part.box.begin()), ints(part.box.shape()),
                               array_of(part)));
  }
  return nb::make_tuple(ints(array.shape), list);
}

std::vector<FieldPlacement> placements_of(const std::vector<PlacementArgument>& arguments) {
  std::vector<FieldPlacement> placements;
  placements.reserve(arguments.size());
  for (const auto& [field, sharding, buckets, truncate] : arguments) {
    FieldPlacement placement{field, sharding};
    placement.buckets = buckets;
    placement.truncate = truncate;
    placements.push_back(std::move(placement));
  }
  return placements;
}

// How long a call waits before it looks for signals.
constexpr std::chrono::milliseconds kLook{50};

class PythonLoader {
 public:
  PythonLoader(const Records& records, const std::vector<PlacementArgument>& placements,
               const std::optional<Ints>& positions, const LoaderOptions& options,
               const std::string& state_json, std::uint64_t seed)
      : functions_(records.functions) {
    const GilRelease released;  // the fingerprint reads records, perhaps Python's
    LoaderState state{.seed = seed};
    if (!state_json.empty()) state = loader_state_from_json(state_json);
    loader_ = std::make_shared<HostLoader>(
        records.source, placements_of(placements), options, state,
        HostLoaderOptions{.positions = positions, .read_at_once = false});
  }
  ~PythonLoader() { close(); }

  /// Kept while it is used, as a signal's handler or another thread may close it.
  std::shared_ptr<HostLoader> get() const {
    process_.check("a loader");
    if (!loader_) throw Error(ErrorCode::invalid_argument, "this loader is closed");
    return loader_;
  }

  /// Also in a fork: what its parent had taken.
  std::string state() const {
    std::shared_ptr<HostLoader> kept = loader_;
    if (!kept) throw Error(ErrorCode::invalid_argument, "this loader is closed");
    if (!process_.is_own()) return to_json(kept->state());  // a thread of the parent's has the lock
    const GilRelease released;
    const std::shared_ptr<HostLoader> loader = std::move(kept);
    const std::lock_guard lock(taking_);
    return to_json(loader->state());
  }

  /// Joins the readers, which may need the GIL to end. In a fork they are the parent's.
  void close() {
    std::shared_ptr<HostLoader> dropped = std::move(loader_);
    if (!process_.is_own()) {
      new std::shared_ptr<HostLoader>(std::move(dropped));  // its threads cannot be joined here
      return;
    }
    {
      const GilRelease released;
      dropped.reset();
    }
    raised_.reset();
  }

  nb::object next() {
    try {
      return next_batch();
    } catch (const Error& error) {
      if_python_raised(error, [this](const PythonRaised& raised, const std::string&) {
        raised_ = raised.value();
      });
      throw;
    }
  }

  nb::object next_batch() {
    std::optional<HostBatch> batch;
    if (!take_ready(batch)) {
      for (;;) {
        std::shared_ptr<HostLoader> kept = get();
        {
          const GilRelease released;
          const std::shared_ptr<HostLoader> loader = std::move(kept);  // dropped without the GIL
          const std::unique_lock lock(taking_, kLook);  // of several threads, one waits
          if (lock && loader->wait(kLook)) {
            batch = loader->next();
            break;
          }
        }
        if (PyErr_CheckSignals() != 0) throw nb::python_error();
      }
    }
    if (!batch) return nb::none();
    nb::list fields;
    for (const HostArray& array : batch->fields) fields.append(parts_of(array));
    return nb::make_tuple(batch->index, batch->epoch, batch->valid_rows, fields,
                          parts_of(batch->mask), parts_of(batch->weights));
  }

  Dict stats() const {
    const LoaderStats stats = alone(&HostLoader::stats);
    Dict dict;
    dict["batches"] = stats.batches;
    dict["records"] = stats.records;
    dict["bytes_placed"] = stats.bytes_placed;
    dict["seconds"] = stats.seconds;
    dict["consumer_waited_seconds"] = stats.consumer_waited_seconds;
    dict["readers_waited_seconds"] = stats.readers_waited_seconds;
    dict["rows_per_second"] = stats.rows_per_second;
    dict["mean_ready_batches"] = stats.mean_ready_batches;
    nb::dict stages;
    for (const StageSeconds& stage : stats.stages) stages[stage.stage.c_str()] = stage.seconds;
    dict["stages"] = stages;
    dict["bottleneck"] = bottleneck(stats);
    return dict;
  }

  nb::typed<nb::tuple, std::int64_t, List> bad_records() const {
    const BadRecordLedger ledger = alone(&HostLoader::bad_records);
    nb::list first;
    for (const BadRecord& bad : ledger.first) {
      first.append(
          nb::make_tuple(bad.batch, bad.row, bad.epoch, bad.record, bad.substitute, bad.message));
    }
    return nb::make_tuple(ledger.count, first);
  }

  // For the garbage collector. An exception holds the frames that it went through, so often this.
  static int traverse(PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    if (!nb::inst_ready(self)) return 0;
    const auto* const loader = nb::inst_ptr<PythonLoader>(self);
    for (const nb::object& function : loader->functions_) Py_VISIT(function.ptr());
    if (loader->raised_) Py_VISIT(loader->raised_->ptr());
    return 0;
  }
  // Runs before anything is cleared, as readers might still call it.
  static void finalize(PyObject* self) {
    if (nb::inst_ready(self)) nb::inst_ptr<PythonLoader>(self)->close();
  }
  static int clear(PyObject* self) {
    if (!nb::inst_ready(self)) return 0;
    auto* const loader = nb::inst_ptr<PythonLoader>(self);
    loader->close();
    const std::vector<nb::object> dropped = std::move(loader->functions_);
    return 0;
  }

 private:
  /// Takes the next batch if it is there. Keeps the GIL: a reader in Python would not soon give it
  /// back.
  bool take_ready(std::optional<HostBatch>& batch) {
    const std::shared_ptr<HostLoader> loader = get();  // close() needs the GIL, so not the last one
    const std::unique_lock lock(taking_, std::try_to_lock);
    if (!lock || !loader->wait(std::chrono::milliseconds(0))) return false;
    batch = loader->next();
    return true;
  }

  /// The loader's answer, asked without the GIL while no other thread uses it.
  template <class Answer>
  Answer alone(Answer (LoaderRun::*ask)() const) const {
    std::shared_ptr<HostLoader> kept = get();
    const GilRelease released;
    const std::shared_ptr<HostLoader> loader = std::move(kept);  // dropped without the GIL
    const std::lock_guard lock(taking_);
    return (loader.get()->*ask)();
  }

  OwnProcess process_;
  mutable std::timed_mutex taking_;    // the loader is for one thread at a time
  std::vector<nb::object> functions_;  // see Records
  std::shared_ptr<HostLoader> loader_;
  std::shared_ptr<nb::object> raised_;  // what next() threw, which loader_ has, too: one reference
};

PyType_Slot kLoaderSlots[] = {{Py_tp_traverse, reinterpret_cast<void*>(&PythonLoader::traverse)},
                              {Py_tp_finalize, reinterpret_cast<void*>(&PythonLoader::finalize)},
                              {Py_tp_clear, reinterpret_cast<void*>(&PythonLoader::clear)},
                              {0, nullptr}};

LoaderOptions options_of(std::int64_t batch_size, std::int64_t epochs, const std::string& order,
                         const std::string& last_batch, const std::string& bad_records,
                         int prefetch, std::size_t prefetch_bytes, int threads, std::int64_t parts,
                         std::int64_t part) {
  return {.batch_size = batch_size,
          .epochs = epochs,
          .order = parse_record_order(order),
          .last_batch = parse_last_batch(last_batch),
          .bad_records = parse_bad_records(bad_records),
          .prefetch = prefetch,
          .prefetch_bytes = prefetch_bytes,
          .threads = threads,
          .parts = parts,
          .part = part};
}

}  // namespace

void bind_loader(nb::module_& module) {
  bind_records(module);
  nb::class_<LoaderOptions>(module, "LoaderOptions")
      .def_static("of", &options_of, nb::arg("batch_size"), nb::arg("epochs"), nb::arg("order"),
                  nb::arg("last_batch"), nb::arg("bad_records"), nb::arg("prefetch"),
                  nb::arg("prefetch_bytes"), nb::arg("threads"), nb::arg("parts"), nb::arg("part"));
  nb::class_<PythonLoader>(module, "Loader", nb::type_slots(kLoaderSlots))
      .def(nb::init<const Records&, const std::vector<PlacementArgument>&,
                    const std::optional<Ints>&, const LoaderOptions&, const std::string&,
                    std::uint64_t>(),
           nb::arg("records"), nb::arg("placements"), nb::arg("positions"), nb::arg("options"),
           nb::arg("state"), nb::arg("seed"))
      .def("next", &PythonLoader::next)
      .def("close", &PythonLoader::close)
      .def("state", &PythonLoader::state)
      .def("stats", &PythonLoader::stats)
      .def("bad_records", &PythonLoader::bad_records)
      .def(
          "step_of",
          [](const PythonLoader& self, std::int64_t record, std::int64_t epoch) {
            std::optional<std::pair<std::int64_t, std::int64_t>> found;
            if (const auto step = self.get()->step_of(record, epoch)) {
              found.emplace(step->batch, step->row);
            }
            return found;
          },
          nb::arg("record"), nb::arg("epoch"))
      .def_prop_ro("batches_per_epoch",
                   [](const PythonLoader& self) { return self.get()->batches_per_epoch(); })
      .def_prop_ro("batches", [](const PythonLoader& self) { return self.get()->batches(); });
}

}  // namespace shardwise::python
