#include "shardwise/checkpoint/detail/root/marks/named_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <span>
#include <string>

#include "shardwise/checkpoint/detail/root/attempt.h"
#include "shardwise/checkpoint/detail/root/names.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/object/bucket_path.h"
#include "shardwise/storage/utf8.h"

namespace shardwise::detail {
namespace {

constexpr std::string_view kPrefix = ".named-";
constexpr std::size_t kMostBytes = 100, kMostDigits = 19;
constexpr int kMostNameTries = 100;

bool is_name(std::string_view text) {
  const bool is_dots = text.find_first_not_of('.') == std::string_view::npos;
  return !is_dots && text.size() <= kMostBytes && std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  });
}

std::filesystem::path path_of(const std::filesystem::path& root, std::string_view name) {
  if (!is_name(name)) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("pin a step: the name is {}, needed are 1 to {} letters, digits, '.', '-', '_'",
                    shown(name), kMostBytes));
  }
  return root / fmt::format("{}{}", kPrefix, name);
}

std::int64_t read_step(FileSystem& files, const std::filesystem::path& path) {
  const std::unique_ptr<File> file = files.open(path);
  const std::uint64_t size = file->size();
  std::string text(std::min<std::uint64_t>(size, kMostDigits + 1), ' ');
  file->read_at(0, reinterpret_cast<std::byte*>(text.data()), text.size());
  std::int64_t step = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), step);
  if (error != std::errc() || end != text.data() + text.size() || step < 0 || size > kMostDigits) {
    throw Error(ErrorCode::corrupt, fmt::format("read {}: found {}, needed is the number of a step",
                                                path.string(), shown(text)));
  }
  return step;
}

}  // namespace

void name_step(FileSystem& files, const std::filesystem::path& root, const NamedStep& named) {
  const std::filesystem::path path = path_of(root, named.name);
  const std::string text = std::to_string(named.step);
  // A put takes the place of the object in one step.
  if (in_bucket(root)) return write_whole_file(files, path, std::as_bytes(std::span(text)));
  // Anyone may remove an unfinished file, as it may be a dead process's: then once more.
  for (int tries = 1;; ++tries) {
    const std::filesystem::path unfinished =
        root / unfinished_lease_name(attempt_stem(named.step, new_id()));
    try {
      write_whole_file(files, unfinished, std::as_bytes(std::span(text)));
      // A rename replaces nothing: a name that moves is on neither step for a moment.
      remove_name(files, root, named.name);
      files.rename(unfinished, path);
      break;
    } catch (const Error& e) {
      if (e.code() == ErrorCode::not_found && tries < kMostNameTries) continue;
      try {
        files.remove(unfinished);
      } catch (...) {
        // It is anyone's to remove.
      }
      throw;
    }
  }
  files.sync_directory(root);
}

bool remove_name(FileSystem& files, const std::filesystem::path& root, std::string_view name) {
  const std::filesystem::path path = path_of(root, name);
  const std::vector<std::string> names = files.list(root);
  if (std::ranges::find(names, path.filename().string()) == names.end()) return false;
  files.remove(path);
  files.sync_directory(root);
  return true;
}

std::vector<NamedStep> named_steps(FileSystem& files, const std::filesystem::path& root) {
  std::vector<NamedStep> named;
  for (const std::string& entry : files.list(root)) {
    if (!entry.starts_with(kPrefix)) continue;
    const std::string name = entry.substr(kPrefix.size());
    if (!is_name(name)) continue;
    try {
      named.push_back({name, read_step(files, root / entry)});
    } catch (const Error& e) {
      if (e.code() != ErrorCode::not_found) throw;  // it was taken away since
    }
  }
  std::ranges::sort(named, {}, &NamedStep::name);
  return named;
}

}  // namespace shardwise::detail
