#include "shardwise/mend/detail/chunk_mender.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <string>

#include "shardwise/shard/error.h"

namespace shardwise::mend_detail {

// The name may lead to another checkpoint's file by now, so the file must say that it is the one
// before it is written to.
std::unique_ptr<File> ChunkMender::open(const std::filesystem::path& directory,
                                        std::size_t number) {
  const std::string path = (directory / checkpoint_.file_name(number)).string();
  std::unique_ptr<File> file = file_system_.open_for_update(path);
  if (file->size() != checkpoint_.file_bytes(number)) {
    throw Error(ErrorCode::corrupt, fmt::format("repair {}: found {} bytes, needed are {}", path,
                                                file->size(), checkpoint_.file_bytes(number)));
  }
  const std::size_t own = checkpoint_.manifest.files.size();
  if (number < own) {
    detail::read_file_tables(*file, directory, checkpoint_.manifest.files[number]);
  } else {
    detail::describe_linked_file(*file, path, checkpoint_.linked[number - own]);
  }
  return file;
}

const std::vector<std::unique_ptr<File>>& ChunkMender::opened(std::size_t number) {
  if (const auto at = opened_.find(number); at != opened_.end()) return at->second;
  std::vector<std::unique_ptr<File>> files;
  std::exception_ptr problem;
  for (const std::filesystem::path& directory : directories_) {
    try {
      files.push_back(open(directory, number));
    } catch (const Error&) {
      problem = std::current_exception();
    }
  }
  if (files.empty()) std::rethrow_exception(problem);
  return opened_.emplace(number, std::move(files)).first->second;
}

void ChunkMender::put(const detail::ChunkId& id, std::span<const std::byte> bytes) {
  const std::uint64_t address = checkpoint_.record(id).address;
  std::vector<std::byte> found(bytes.size());
  for (const std::unique_ptr<File>& file : opened(checkpoint_.file_of(id))) {
    const auto is_right = [&] {
      file->read_at(address, found.data(), found.size());
      return std::ranges::equal(found, bytes);
    };
    try {
      if (is_right()) continue;  // somebody else was faster
    } catch (const Error& e) {
      if (e.code() != ErrorCode::io) throw;
    }
    file->write_at(address, bytes.data(), bytes.size());
    file->sync();
    if (is_right()) continue;
    throw Error(ErrorCode::io, fmt::format("repair {}: the bytes that were written are not those "
                                           "that are read",
                                           checkpoint_.describe(id)));
  }
}

void ChunkMender::seal() {
  for (const auto& [number, files] : opened_) {
    for (const std::unique_ptr<File>& file : files) file->seal();
  }
  close();
}

}  // namespace shardwise::mend_detail
