#include "shardwise/loader/detail/remote/remote_names.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "shardwise/loader/detail/remote/remote_file.h"
#include "shardwise/shard/text.h"

namespace shardwise::detail {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMostNumbers = 1'000'000;

[[noreturn]] void refuse_names(ErrorCode code, const fs::path& url, std::string_view found,
                               std::string_view needed) {
  throw Error(code, fmt::format("open {}: found {}, needed {}", shown_url(url), found, needed));
}

/// The URLs that a URL with "{FIRST..LAST}" stands for; itself without one.
std::vector<fs::path> numbered(const fs::path& url) {
  const std::string& text = url.native();
  const std::size_t open = text.find('{'), close = text.find('}', std::min(open, text.size()));
  if (close == text.npos) return {url};
  const std::string_view inside = std::string_view(text).substr(open + 1, close - open - 1);
  const std::size_t dots = inside.find("..");
  const std::int64_t first = parse_count(inside.substr(0, dots)).value_or(-1);
  const std::string_view end = dots == inside.npos ? "" : inside.substr(dots + 2);
  const std::int64_t last = parse_count(end).value_or(-1);
  if (first < 0 || last < first || last - first >= kMostNumbers) {
    refuse_names(ErrorCode::invalid_argument, url, fmt::format("\"{{{}}}\"", inside),
                 "{FIRST..LAST}, at most 1,000,000 numbers");
  }
  std::vector<fs::path> all;
  for (std::int64_t number = first; number <= last; ++number) {
    const std::string digits = fmt::format("{:0{}}", number, dots);
    for (fs::path& one : numbered(text.substr(0, open) + digits + text.substr(close + 1))) {
      all.push_back(std::move(one));
    }
    if (std::ssize(all) > kMostNumbers) {
      refuse_names(ErrorCode::invalid_argument, url, "more files", "at most 1,000,000");
    }
  }
  return all;
}

/// Keys of a bucket that begin with a prefix, sorted. Folders' own marks are left out.
std::vector<ObjectInfo> listed(const fs::path& url, const BucketPlace& place,
                               const std::string& prefix) {
  std::vector<ObjectInfo> objects = from_store([&] { return place.store->list(prefix).objects; });
  std::erase_if(objects, [](const ObjectInfo& object) { return object.key.ends_with('/'); });
  std::ranges::sort(objects, {}, &ObjectInfo::key);
  for (const ObjectInfo& object : objects) {
    if (fs::path(object.key).lexically_normal() == object.key) continue;
    refuse_names(ErrorCode::unsupported, url, fmt::format("the key \"{}\"", object.key),
                 "keys without empty parts, \".\" and \"..\"");
  }
  return objects;
}

std::vector<fs::path> in_listing(const fs::path& url) {
  const BucketPlace place = remote_place(url);
  const std::size_t star = place.key.find('*');
  std::string pattern = place.key;
  if (star == pattern.npos && !pattern.empty()) pattern += '/';
  const std::size_t slash = pattern.substr(0, star).rfind('/');
  const std::string prefix = pattern.substr(0, slash == pattern.npos ? 0 : slash + 1);
  std::vector<fs::path> files;
  for (const ObjectInfo& object : listed(url, place, prefix)) {
    const std::string_view key = object.key;
    const std::string_view name = key.substr(key.rfind('/') + 1);
    if (name.starts_with('.') || name.starts_with('_')) continue;
    const bool is_one =
        star == place.key.npos || ::fnmatch(pattern.c_str(), object.key.c_str(), FNM_PATHNAME) == 0;
    if (is_one) files.emplace_back(place.base + "/" + object.key);
  }
  if (files.empty()) refuse_names(ErrorCode::not_found, url, "no object there", "one or more");
  return files;
}

}  // namespace

std::vector<fs::path> remote_files(const fs::path& url) {
  std::vector<fs::path> files;
  for (const fs::path& one : numbered(url)) {
    const std::string text = in_bucket(one) ? path_of_url(one.native()) : one.native();
    if (in_bucket(one) && (text.ends_with('/') || text.find('*') != text.npos)) {
      for (fs::path& file : in_listing(text)) files.push_back(std::move(file));
    } else {
      files.emplace_back(text);
    }
  }
  return files;
}

std::vector<ObjectInfo> objects_below(const fs::path& folder) {
  if (!in_bucket(folder)) {
    refuse_names(ErrorCode::unsupported, folder, "a folder of a web server, which has no listing",
                 "one in a bucket");
  }
  const BucketPlace place = remote_place(folder);
  const std::string prefix = place.key.empty() ? "" : place.key + "/";
  std::vector<ObjectInfo> objects = listed(folder, place, prefix);
  for (ObjectInfo& object : objects) object.key.erase(0, prefix.size());
  return objects;
}

}  // namespace shardwise::detail
