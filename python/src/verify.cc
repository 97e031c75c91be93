#include "shardwise/checkpoint/verify.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "parts.h"
#include "shardwise/mend/parity.h"
#include "shardwise/mend/repair.h"
#include "work.h"

namespace shardwise::python {
namespace {

using Findings = nb::typed<nb::tuple, nb::any, nb::ellipsis>;

nb::tuple tuple_of(const Damage& damage) {
  return nb::make_tuple(damage.file, damage.message, damage.tensor, damage.chunk);
}

List list_of(const std::vector<Damage>& damage) {
  List list;
  for (const Damage& one : damage) list.append(tuple_of(one));
  return list;
}

/// As VerifyReport of _verify.py has it.
Findings tuple_of(const VerifyReport& report) {
  return nb::make_tuple(list_of(report.damage), list_of(report.unread), report.chunks, report.bytes,
                        report.parity_files, report.parity_blocks);
}

Findings verify(const std::string& path, int threads, nb::object progress) {
  Work work(std::move(progress));
  const ReadOptions options{.threads = threads, .progress = work.progress()};
  return tuple_of(work.run([&] { return verify_checkpoint(path, options); }));
}

/// As RepairReport of _verify.py has it.
Findings repair(const std::string& path, const std::vector<std::string>& sources, int threads,
                nb::object progress) {
  Work work(std::move(progress));
  const RepairOptions options{
      .from = {sources.begin(), sources.end()}, .threads = threads, .progress = work.progress()};
  const RepairReport report = work.run([&] { return repair_checkpoint(path, options); });
  List repaired, lost;
  for (const Repaired& one : report.repaired) {
    repaired.append(nb::make_tuple(tuple_of(one.damage), one.from));
  }
  for (const RepairReport::Lost& one : report.lost) {
    lost.append(nb::make_tuple(one.tensor, ints(one.box.begin()), ints(one.box.end())));
  }
  return nb::make_tuple(repaired, tuple_of(report.left), lost);
}

/// As ParityStats of _verify.py has it.
Findings protect(const std::string& path, int blocks, int threads, nb::object progress,
                 std::optional<int> writer) {
  Work work(std::move(progress));
  const ParityOptions options{
      .blocks = blocks, .writer = writer, .threads = threads, .progress = work.progress()};
  const ParityStats stats = work.run([&] { return write_parity(path, options); });
  return nb::make_tuple(stats.files, stats.written, stats.file_bytes, stats.parity_bytes,
                        stats.encoded_bytes, stats.seconds);
}

std::int64_t unprotect(const std::string& path) {
  Work work{nb::object(nb::none())};
  return work.run([&] { return remove_parity(path); });
}

}  // namespace

void bind_verify(nb::module_& module) {
  module.def("verify", &verify, nb::arg("path"), nb::arg("threads") = 0,
             nb::arg("progress") = nb::none());
  module.def("repair", &repair, nb::arg("path"), nb::arg("sources"), nb::arg("threads") = 0,
             nb::arg("progress") = nb::none());
  module.def("write_parity", &protect, nb::arg("path"), nb::arg("blocks"), nb::arg("threads") = 0,
             nb::arg("progress") = nb::none(), nb::arg("writer") = nb::none());
  module.def("remove_parity", &unprotect, nb::arg("path"));
}

}  // namespace shardwise::python
