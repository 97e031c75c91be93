#include "python_tensors.h"

#include <cstdint>
#include <utility>

#include "gil.h"
#include "python_source.h"
#include "shardwise/shard/dtype.h"

namespace shardwise::python {

PythonTensors::PythonTensors(const std::vector<Row>& rows, nb::object read, OtherContent other)
    : read_(held(std::move(read))), other_(std::move(other)) {
  infos_.reserve(rows.size());
  for (const auto& [name, dtype, shape] : rows) {
    TensorInfo info;
    info.name = name;
    info.dtype = parse_dtype(dtype);
    info.shape = Shape{std::span(shape)};
    info.logical_bytes = num_bytes(info.shape, size_bytes(info.dtype));
    infos_.push_back(std::move(info));
  }
}

void PythonTensors::read(std::size_t tensor, const Box& box, std::span<std::byte> out) const {
  if (out.empty()) return;
  with_gil([&] {
    try {
      const BoxTarget target{tensor, box, out};
      read_here({&target, 1});
    } catch (const nb::python_error& error) {
      throw PythonRaised(error);
    }
  });
}

void PythonTensors::read_here(std::span<const BoxTarget> targets) const {
  nb::list boxes;
  for (const auto& [number, box, out] : targets) {
    if (out.empty()) continue;
    boxes.append(nb::make_tuple(number, ints(box.begin()), ints(box.shape()),
                                reinterpret_cast<std::uintptr_t>(out.data())));
  }
  (*read_)(boxes);
}

}  // namespace shardwise::python
