#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.h"
#include "shardwise/checkpoint/save.h"
#include "shardwise/jobs/policies.h"
#include "shardwise/reshape/edits.h"

namespace shardwise::python {

/// Shapes, strides and box bounds as Python gives them.
using Ints = std::vector<std::int64_t>;

/// begin, shape, address of the first element, bytes from one element to the next in each dim.
using PartArgument = std::tuple<Ints, Ints, std::uintptr_t, Ints>;

/// A tensor to be saved. Python may keep the memory of some parts.
struct Source {
  TensorSource source;
};

std::vector<TensorSource> sources_of(const std::vector<Source*>& sources);
Dict dict_of(const SaveStats& stats);

/// Returns the members in their order.
using ManagerStatsTuple =
    std::tuple<std::int64_t, std::int64_t, std::optional<std::int64_t>, std::string>;
ManagerStatsTuple members_of(const ManagerStats& stats);

/// "raise" or "warn".
OnSaveError on_save_error_of(const std::string& word);

/// Keeps a manager's warnings, from any thread. Python logs them with the GIL.
class Warnings {
 public:
  std::function<void(const std::string&)> teller() {
    return [this](const std::string& text) {
      const std::lock_guard lock(mutex_);
      texts_.push_back(text);
    };
  }

  /// Those since the last call.
  std::vector<std::string> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(texts_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> texts_;
};

struct IntTuple : nb::tuple {
  NB_OBJECT_DEFAULT(IntTuple, nb::tuple, "tuple[int, ...]", PyTuple_Check)
};

Box box_of(const Ints& begin, const Ints& shape);
Ints ints(const Dims& dims);
IntTuple int_tuple(const Dims& dims);

/// Rules: both sides of their "=".
using Pairs = std::vector<std::tuple<std::string, std::string>>;

/// Which names are wanted, and which of them not; renames, casts, transposes, splits, joins,
/// resizes.
using EditArgument = std::tuple<std::vector<std::string>, std::vector<std::string>, Pairs, Pairs,
                                Pairs, Pairs, Pairs, Pairs>;

/// Throws invalid_argument for what cannot be read.
TensorEdits edits_of(const EditArgument& edits);

}  // namespace shardwise::python
