#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "shardwise/shard/error.h"

namespace shardwise {
class CheckpointReader;
}

// The module is thin: arrays cross as addresses, which python/shardwise/ takes from numpy, torch
// and JAX, and which it keeps alive; what blocks runs without the GIL.
namespace shardwise::python {

namespace nb = nanobind;

/// "OSError: no space", of any exception of Python's. What UTF-8 cannot hold is escaped. Call with
/// the GIL. nb::python_error::what() must not be called: it ends the process at a lone surrogate.
std::string error_text(nb::handle exception);

/// Says whether an exception is a shardwise.Error.
bool is_error(nb::handle exception);

/// The code of shardwise.Error of this name; that of an exception, if it is one.
std::optional<ErrorCode> code_named(const std::string& word);
std::optional<ErrorCode> code_of(nb::handle exception);

/// Its str(), likewise.
std::string str_of(nb::handle object);

inline nb::bytes python_bytes(std::span<const std::byte> bytes) {
  return nb::bytes(bytes.data(), bytes.size());
}

/// The reader inside shardwise.Checkpoint. Call with the GIL.
nb::object python_reader(CheckpointReader reader);

using Dict = nb::typed<nb::dict, nb::str, nb::any>;
using List = nb::typed<nb::list, nb::any>;

void bind_errors(nb::module_& module);
void bind_parts(nb::module_& module);
void bind_save(nb::module_& module);
void bind_save_turns(nb::module_& module);
void bind_read(nb::module_& module);
void bind_sharding(nb::module_& module);
void bind_compare(nb::module_& module);
void bind_convert(nb::module_& module);
void bind_loader(nb::module_& module);
void bind_calls(nb::module_& module);
void bind_tiers(nb::module_& module);
void bind_verify(nb::module_& module);
void bind_bucket(nb::module_& module);
void bind_programs(nb::module_& module);

}  // namespace shardwise::python
