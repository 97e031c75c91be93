#include "shardwise/checkpoint/verify.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "shardwise/mend/parity.h"
#include "shardwise/mend/repair.h"
#include "value_class.h"
#include "work.h"

namespace shardwise::python {
namespace {

struct Slices : nb::tuple {
  NB_OBJECT_DEFAULT(Slices, nb::tuple, "tuple[slice, ...]", PyTuple_Check)
};

struct Lost {
  std::string tensor;
  Slices box;
};

struct PythonRepairReport {
  std::vector<Repaired> repaired;
  VerifyReport left;
  std::vector<Lost> lost;

  bool ok() const { return left.ok(); }
};

VerifyReport verify(const std::string& path, int threads, nb::object progress) {
  Work work(std::move(progress));
  const ReadOptions options{.threads = threads, .progress = work.progress()};
  return work.run([&] { return verify_checkpoint(path, options); });
}

PythonRepairReport repair(const std::string& path, const std::vector<std::string>& sources,
                          int threads, nb::object progress) {
  Work work(std::move(progress));
  const RepairOptions options{
      .from = {sources.begin(), sources.end()}, .threads = threads, .progress = work.progress()};
  RepairReport report = work.run([&] { return repair_checkpoint(path, options); });
  std::vector<Lost> lost;
  for (const auto& [tensor, box] : report.lost) {
    nb::list slices;
    for (std::size_t d = 0; d < box.rank(); ++d) {
      slices.append(nb::slice(box.begin(d), box.end(d)));
    }
    lost.push_back({tensor, nb::borrow<Slices>(nb::tuple(slices))});
  }
  return {std::move(report.repaired), std::move(report.left), std::move(lost)};
}

ParityStats protect(const std::string& path, int blocks, int threads, nb::object progress,
                    std::optional<int> writer) {
  Work work(std::move(progress));
  const ParityOptions options{
      .blocks = blocks, .writer = writer, .threads = threads, .progress = work.progress()};
  return work.run([&] { return write_parity(path, options); });
}

std::int64_t unprotect(const std::string& path) {
  Work work{nb::object(nb::none())};
  return work.run([&] { return remove_parity(path); });
}

}  // namespace

void bind_verify(nb::module_& module) {
  ValueClass<Damage>(module, "Damage", "One fault of a checkpoint.")
      .field("file", &Damage::file)
      .field("message", &Damage::message)
      .field("tensor", &Damage::tensor)
      .field("chunk", &Damage::chunk);
  ValueClass<VerifyReport>(module, "VerifyReport",
                           "The result of verify(). `unread`: parts that could not be read, so "
                           "that nothing is known of them;\ndelete nothing because of it.")
      .field("damage", &VerifyReport::damage)
      .field("unread", &VerifyReport::unread)
      .field("chunks", &VerifyReport::chunks)
      .field("bytes", &VerifyReport::bytes)
      .field("parity_files", &VerifyReport::parity_files,
             "shard files that have parity, which is right")
      .field("parity_blocks", &VerifyReport::parity_blocks,
             "blocks of 1 MiB that each of these may lose, at least")
      .ok(&VerifyReport::ok);
  ValueClass<Repaired>(module, "Repaired", "A fault that was repaired.")
      .field("damage", &Repaired::damage)
      .field("source", &Repaired::from, "path of the data that repaired it");
  ValueClass<Lost>(module, "Lost",
                   "Elements that no source has whole any more: checkpoint[tensor][box].")
      .field("tensor", &Lost::tensor)
      .field("box", &Lost::box);
  ValueClass<PythonRepairReport>(module, "RepairReport",
                                 "The result of repair(). `left`: the faults that verify() finds "
                                 "after it; each message says why one\ncould not be repaired.")
      .field("repaired", &PythonRepairReport::repaired)
      .field("left", &PythonRepairReport::left)
      .field("lost", &PythonRepairReport::lost)
      .ok(&PythonRepairReport::ok);
  ValueClass<ParityStats>(module, "ParityStats", "The result of write_parity().")
      .field("files", &ParityStats::files, "shard files that have parity now")
      .field("written", &ParityStats::written, "of these, files that had no parity before")
      .field("file_bytes", &ParityStats::file_bytes, "of all these files")
      .field("parity_bytes", &ParityStats::parity_bytes, "of their parity, which is the cost")
      .field("encoded_bytes", &ParityStats::encoded_bytes, "that were read for it")
      .field("seconds", &ParityStats::seconds, "that this took");
  module.def("verify", &verify, nb::arg("path"), nb::arg("threads") = 0,
             nb::arg("progress") = nb::none());
  module.def("repair", &repair, nb::arg("path"), nb::arg("sources"), nb::arg("threads") = 0,
             nb::arg("progress") = nb::none());
  module.def("write_parity", &protect, nb::arg("path"), nb::arg("blocks"), nb::arg("threads") = 0,
             nb::arg("progress") = nb::none(), nb::arg("writer") = nb::none());
  module.def("remove_parity", &unprotect, nb::arg("path"));
}

}  // namespace shardwise::python
