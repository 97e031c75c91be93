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

/// What is stored beside the tensors of a format that a Python function reads.
struct BesideTensors {
  std::string user_json, objects_json;
  std::vector<std::string> left_out;
};

/// Tensors that a Python function reads: those of formats that packages of Python alone can read.
/// It is given a list of (number, begin, shape, address of row-major memory). Thread-safe.
class PythonTensors final : public BoxReader {
 public:
  /// name, dtype, shape.
  using Row = std::tuple<std::string, std::string, Ints>;

  PythonTensors(const std::vector<Row>& rows, nb::object read, BesideTensors beside);

  std::span<const TensorInfo> tensors() const override { return infos_; }

  /// From any thread. Throws PythonRaised.
  void read(std::size_t tensor, const Box& box, std::span<std::byte> out) const override;

  /// In one call. With the GIL; throws what Python raises.
  void read_here(std::span<const BoxTarget> targets) const;

  const BesideTensors& beside() const { return beside_; }

 private:
  std::vector<TensorInfo> infos_;
  std::shared_ptr<nb::object> read_;
  BesideTensors beside_;
};

/// The unedited tensors of a `_core.Reader`. With the GIL.
std::shared_ptr<const BoxReader> tensors_of(nb::handle reader);

}  // namespace shardwise::python
