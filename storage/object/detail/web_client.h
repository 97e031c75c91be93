#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "shardwise/shard/error.h"
#include "shardwise/storage/object/detail/http.h"
#include "shardwise/storage/object/object_client.h"

namespace shardwise::detail {

/// A file at "https://HOST:PORT/PATH?QUERY", or http on loopback, as the only object of a store
/// that is read: its key is the path. Messages do not show the query, which may hold a signature.
/// Its ETag stands for its content; of a server without one, Last-Modified does.
struct WebFile {
  std::shared_ptr<ObjectClient> client;
  std::string key;
};

/// Nothing is sent yet. Files share the connections of `http`. Throws invalid_argument for another
/// URL, one with a password, and plain http to another machine.
WebFile open_web_file(std::string_view url, std::shared_ptr<HttpClient> http);

}  // namespace shardwise::detail
