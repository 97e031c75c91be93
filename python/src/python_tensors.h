#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "bindings.h"
#include "parts.h"
#include "shardwise/checkpoint/box_reader.h"
#include "shardwise/checkpoint/reader.h"

namespace shardwise::python {

/// The other content of a checkpoint whose tensors a Python function reads.
struct OtherContent {
  std::string user_json, objects_json;
  std::vector<std::string> left_out;
};

/// Tensors of formats that only packages of Python can read: a Python function reads them. It gets
/// a list of (number, begin, shape, address of row-major memory). It is thread-safe.
class PythonTensors final : public BoxReader {
 public:
  /// name, dtype, shape.
  using Row = std::tuple<std::string, std::string, Ints>;

  PythonTensors(const std::vector<Row>& rows, nb::object read, OtherContent other);

  std::span<const TensorInfo> tensors() const override { return infos_; }

  /// May be called from any thread. Throws PythonRaised.
  void read(std::size_t tensor, const Box& box, std::span<std::byte> out) const override;

  /// Reads all in one call of the function. Call with the GIL; throws Python's exceptions.
  void read_here(std::span<const BoxTarget> targets) const;

  const OtherContent& other() const { return other_; }

 private:
  std::vector<TensorInfo> infos_;
  std::shared_ptr<nb::object> read_;
  OtherContent other_;
};

/// The unedited tensors of a `_core.Reader`. With the GIL.
std::shared_ptr<const BoxReader> tensors_of(nb::handle reader);

}  // namespace shardwise::python
