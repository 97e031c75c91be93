#include "shardwise/bucket/bucket.h"

#include <string>
#include <utility>

#include "bindings.h"
#include "shardwise/storage/object/bucket_path.h"
#include "work.h"

namespace shardwise::python {
namespace {

std::string copy(const std::string& from, const std::string& to, bool replace, int requests,
                 nb::object progress) {
  Work work(std::move(progress));
  CopyOptions options{.requests = requests, .progress = work.progress()};
  options.replace = replace;
  return work.run([&] { return copy_step(from, to, options); }).directory.string();
}

}  // namespace

void bind_bucket(nb::module_& module) {
  module.def("copy_step", &copy, nb::arg("source"), nb::arg("root"), nb::arg("replace"),
             nb::arg("requests"), nb::arg("progress").none());
  module.def("path_of_url", &path_of_url, nb::arg("url"));
}

}  // namespace shardwise::python
