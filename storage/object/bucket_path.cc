#include "shardwise/storage/object/bucket_path.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>

#include "shardwise/shard/error.h"
#include "shardwise/storage/object/detail/credentials/credentials.h"
#include "shardwise/storage/object/detail/object_files.h"
#include "shardwise/storage/object/detail/s3_client.h"
#include "shardwise/storage/object/detail/web_client.h"

namespace shardwise {
namespace {

constexpr std::string_view kScheme = "s3:/";

/// The stores of this process, by bucket and options.
struct Stores {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<ObjectStore>> by_bucket;
};

Stores& stores() {
  static Stores all;
  return all;
}

}  // namespace

bool in_bucket(const std::filesystem::path& path) { return path.native().starts_with(kScheme); }

std::string path_of_url(const std::string& url) {
  const std::size_t query = url.find('?');
  if (!in_bucket(url) || query == std::string::npos) return url;
  const std::size_t slash = url.find('/', std::string_view("s3://").size());
  if (slash == std::string::npos || slash > query) return url;
  // No option has an "@" in it, which begins the name of a step.
  const std::size_t at = std::min(url.find('@', query), url.size());
  std::string options;
  for (const char c : std::string_view(url).substr(query, at - query)) {
    c == '/' ? options += "%2F" : options += c;
  }
  return url.substr(0, slash) + options + url.substr(slash, query - slash) + url.substr(at);
}

BucketPlace open_bucket(const std::filesystem::path& path) {
  std::string_view text = path.native();
  text.remove_prefix(kScheme.size());
  if (text.starts_with('/')) text.remove_prefix(1);
  const std::string bucket(text.substr(0, text.find('/')));
  if (bucket.empty() || bucket.starts_with('?')) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("open {}: found no bucket, needed s3://BUCKET/PREFIX", path.string()));
  }
  const std::string below = std::filesystem::path(text.substr(bucket.size())).lexically_normal();
  const std::size_t begin = below.find_first_not_of('/'), end = below.find_last_not_of('/');
  BucketPlace place{nullptr, "s3://" + bucket, {}};
  if (begin != std::string::npos && below != ".") place.key = below.substr(begin, end + 1 - begin);
  const std::lock_guard lock(stores().mutex);
  std::shared_ptr<ObjectStore>& store = stores().by_bucket[bucket];
  if (!store)
    store = std::make_shared<ObjectStore>(detail::open_s3(detail::parse_s3_location(place.base)));
  place.store = store;
  return place;
}

bool on_web(const std::filesystem::path& path) {
  return path.native().starts_with("https://") || path.native().starts_with("http://");
}

BucketPlace open_web(const std::filesystem::path& url) {
  static const auto http = std::make_shared<detail::HttpClient>(
      detail::HttpOptions{.ca_file = detail::process_environment()("AWS_CA_BUNDLE")});
  detail::WebFile file = detail::open_web_file(url.native(), http);
  std::string base = file.client->name();
  return {std::make_shared<ObjectStore>(std::move(file.client)), std::move(base),
          std::move(file.key)};
}

std::shared_ptr<FileSystem> file_system_of(const std::filesystem::path& path,
                                           std::shared_ptr<FileSystem> given) {
  if (given) return given;
  if (!in_bucket(path)) return posix_file_system();
  const BucketPlace place = open_bucket(path);
  return detail::object_files(place.store, place.base);
}

void use_object_client(const std::string& bucket, std::shared_ptr<ObjectClient> client,
                       RetryOptions options) {
  const std::lock_guard lock(stores().mutex);
  stores().by_bucket.erase(bucket);
  if (client) {
    stores().by_bucket[bucket] =
        std::make_shared<ObjectStore>(std::move(client), std::move(options));
  }
}

}  // namespace shardwise
