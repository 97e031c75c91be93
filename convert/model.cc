#include "shardwise/convert/model.h"

#include <fmt/format.h>

#include <bit>
#include <utility>

#include "shardwise/convert/detail/model_source.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/file.h"
#include "shardwise/storage/utf8.h"

namespace shardwise {

static_assert(std::endian::native == std::endian::little, "elements are read as they are");

struct ModelReader::Impl {
  std::filesystem::path path;
  std::shared_ptr<FileSystem> file_system;  // its open files may need it
  detail::ModelSource source;
  std::string metadata, user_json;
};

std::string_view model_format(const std::filesystem::path& path,
                              std::shared_ptr<FileSystem> file_system) {
  if (!file_system) file_system = posix_file_system();
  try {
    return detail::recognised_format(*file_system, path);
  } catch (const Error&) {
    return {};
  }
}

ModelReader::ModelReader(const std::filesystem::path& source,
                         std::shared_ptr<FileSystem> file_system) {
  if (!file_system) file_system = posix_file_system();
  detail::ModelSource opened = detail::open_model(source, file_system);
  std::string metadata = detail::to_json(opened.metadata);
  std::string user_json = detail::user_json_of(opened.metadata);
  for (const TensorInfo& info : opened.tensors->tensors()) {
    if (info.foreign_dtype.empty()) continue;
    opened.left_out.push_back(
        fmt::format("{}: dtype {} is not supported", shown(info.name), shown(info.foreign_dtype)));
  }
  impl_.reset(new Impl{source, std::move(file_system), std::move(opened), std::move(metadata),
                       std::move(user_json)});
}

ModelReader::~ModelReader() = default;
ModelReader::ModelReader(ModelReader&&) noexcept = default;
ModelReader& ModelReader::operator=(ModelReader&&) noexcept = default;

std::span<const TensorInfo> ModelReader::tensors() const {
  return impl_->source.tensors->tensors();
}

void ModelReader::read(std::size_t tensor, const Box& box, std::span<std::byte> out) const {
  const std::span<const TensorInfo> all = tensors();
  if (tensor >= all.size()) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("read {}: there is no tensor number {} of {}", format(), tensor, all.size()));
  }
  const TensorInfo& info = all[tensor];
  if (!Box::whole(info.shape).contains(box) ||
      num_bytes(box.shape(), size_bytes(info.dtype)) != out.size()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("read tensor {}: {} bytes for box {}, needed is a box inside {}, and "
                            "its size",
                            shown(info.name), out.size(), to_string(box), to_string(info.shape)));
  }
  check_readable(info, fmt::format("read {}", impl_->path.string()));
  impl_->source.tensors->read(tensor, box, out);
}

std::string_view ModelReader::format() const { return impl_->source.format; }
std::span<const std::string> ModelReader::left_out() const { return impl_->source.left_out; }
const std::string& ModelReader::metadata() const { return impl_->metadata; }
const std::string& ModelReader::user_json() const { return impl_->user_json; }

}  // namespace shardwise
