#include "shardwise/checkpoint/detail/hdf5/plain_file.h"

#include <utility>

#include "shardwise/checkpoint/detail/hdf5/address_driver.h"
#include "shardwise/checkpoint/detail/hdf5/hdf5_groups.h"
#include "shardwise/checkpoint/detail/hdf5/hdf5_objects.h"

namespace shardwise::detail {
namespace {

std::uint64_t aligned(std::uint64_t address) {
  constexpr std::uint64_t kAlignment = 64;
  return (address + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

PlainFile plain_file(std::span<const PlainDataset> datasets) {
  PlainFile file;
  std::uint64_t end = kFrontBytes;
  for (const PlainDataset& dataset : datasets) {
    file.begins.push_back(aligned(end));
    end = file.begins.back() + num_bytes(dataset.shape, size_bytes(dataset.dtype));
  }
  file.data_end = aligned(end);
  AddressDriver driver(kFrontBytes, file.data_end);
  const Hdf5Lock lock;
  driver.finish(driver.create_file());
  const Hdf5Types types;
  Hdf5Bytes out(driver.end());
  Hdf5Datasets made(out);
  std::vector<Hdf5Link> links;
  for (std::size_t d = 0; d < datasets.size(); ++d) {
    const auto& [path, dtype, shape] = datasets[d];
    const std::uint64_t bytes = num_bytes(shape, size_bytes(dtype));
    links.push_back(
        {path, made.add_contiguous(types[dtype], shape,
                                   bytes == 0 ? kHdf5NoAddress : file.begins[d], bytes)});
  }
  const std::uint64_t root = add_hdf5_groups(out, std::move(links));
  driver.append(out, root);
  file.front.assign(driver.front().begin(), driver.front().end());
  file.tail.assign(driver.tail().begin(), driver.tail().end());
  return file;
}

}  // namespace shardwise::detail
