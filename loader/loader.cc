#include "shardwise/loader/loader.h"

#include <cstdint>
#include <string>
#include <utility>

#include "shardwise/loader/detail/engine/engine.h"

namespace shardwise {
namespace {

detail::Home on_devices(Devices& devices) {
  return {[&devices](const Mesh& mesh, std::int64_t position) {
            return devices.is_addressable(mesh.device_at(position));
          },
          [&devices](const Mesh& mesh, std::int64_t position, std::size_t bytes,
                     const std::string& label) {
            auto buffer =
                devices.at(mesh.device_at(position)).allocate(bytes, MemoryKind::loader, label);
            std::byte* const data = buffer->data();
            return detail::OwnedBytes{data, std::move(buffer)};
          },
          devices.timeline()};
}

ShardedArray to_array(const Devices& devices, const detail::BatchArray& array,
                      std::vector<detail::OwnedBytes> slabs) {
  std::vector<std::shared_ptr<Buffer>> buffers;
  buffers.reserve(slabs.size());
  for (detail::OwnedBytes& slab : slabs) {
    buffers.push_back(std::static_pointer_cast<Buffer>(std::move(slab.owner)));
  }
  return ShardedArray::from_shards(devices, {array.dtype(), array.shape(), array.sharding()},
                                   std::move(buffers));
}

}  // namespace

const ShardedArray& Batch::field(std::string_view name) const {
  return fields[detail::field_number(names, name)];
}

Loader::Loader(Devices& devices, std::shared_ptr<const Source> source,
               const std::vector<FieldPlacement>& placements, LoaderOptions options,
               LoaderState state)
    : LoaderRun(std::make_unique<detail::Engine>(std::move(source), placements, options, state,
                                                 on_devices(devices))),
      devices_(devices) {
  engine().start();
}

std::optional<Batch> Loader::next() {
  std::optional<detail::PendingBatch> batch = engine().next();
  if (!batch) return std::nullopt;
  const std::vector<detail::Column>& columns = engine().plan().columns();
  std::vector<ShardedArray> arrays;
  arrays.reserve(columns.size());
  for (std::size_t i = 0; i < columns.size(); ++i) {
    arrays.push_back(
        to_array(devices_, columns[i].arrays[batch->variants[i]], std::move(batch->buffers[i])));
  }
  ShardedArray weights = std::move(arrays.back());
  arrays.pop_back();
  ShardedArray mask = std::move(arrays.back());
  arrays.pop_back();
  return Batch{batch->index,
               batch->epoch,
               std::move(arrays),
               std::move(mask),
               std::move(weights),
               batch->valid_rows,
               engine().plan().field_names()};
}

}  // namespace shardwise
