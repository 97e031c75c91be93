#include "shardwise/convert/safetensors.h"

#include <fmt/format.h>

#include <bit>
#include <utility>

#include "shardwise/convert/detail/box_runs.h"
#include "shardwise/convert/detail/safetensors_model.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/file.h"
#include "shardwise/storage/utf8.h"

namespace shardwise {

static_assert(std::endian::native == std::endian::little, "elements are read as they are");

struct SafetensorsReader::Impl {
  std::unique_ptr<detail::SafetensorsModel> model;
  std::string metadata, user_json;
};

SafetensorsReader::SafetensorsReader(const std::filesystem::path& source,
                                     std::shared_ptr<FileSystem> file_system) {
  if (!file_system) file_system = posix_file_system();
  auto model = detail::open_safetensors(source, file_system);
  std::string metadata = detail::to_json(model->metadata);
  std::string user_json = detail::user_json_of(model->metadata);
  impl_.reset(new Impl{std::move(model), std::move(metadata), std::move(user_json)});
}

SafetensorsReader::~SafetensorsReader() = default;
SafetensorsReader::SafetensorsReader(SafetensorsReader&&) noexcept = default;
SafetensorsReader& SafetensorsReader::operator=(SafetensorsReader&&) noexcept = default;

std::span<const TensorInfo> SafetensorsReader::tensors() const { return impl_->model->tensors; }

void SafetensorsReader::read(std::size_t tensor, const Box& box, std::span<std::byte> out) const {
  detail::SafetensorsModel& model = *impl_->model;
  if (tensor >= model.tensors.size()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("read safetensors: there is no tensor number {} of {}", tensor,
                            model.tensors.size()));
  }
  const TensorInfo& info = model.tensors[tensor];
  const detail::FilePlace place = model.places[tensor];
  const std::size_t element_bytes = size_bytes(info.dtype);
  if (!Box::whole(info.shape).contains(box) ||
      num_bytes(box.shape(), element_bytes) != out.size()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("read tensor {}: {} bytes for box {}, needed is a box inside {}, and "
                            "its size",
                            shown(info.name), out.size(), to_string(box), to_string(info.shape)));
  }
  try {
    const std::shared_ptr<File> file = model.files.at(place.file);
    detail::read_box(*file, place.offset, info.shape, element_bytes, box, out);
  } catch (const Error& error) {
    throw Error(error, fmt::format("tensor {} of {}: {}", shown(info.name),
                                   model.paths[place.file].string(), error.what()));
  }
}

const std::string& SafetensorsReader::metadata() const { return impl_->metadata; }
const std::string& SafetensorsReader::user_json() const { return impl_->user_json; }

}  // namespace shardwise
