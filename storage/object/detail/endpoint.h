#pragma once

#include <string>
#include <string_view>

namespace shardwise::detail {

/// A store's address. `authority` is the host, and the port if it is not the scheme's own.
struct Endpoint {
  bool is_tls = true;
  std::string host = {}, authority = {};

  std::string scheme() const { return is_tls ? "https://" : "http://"; }

  /// An address in digits has no names below it.
  bool has_address() const;
};

/// Reads "https://HOST:PORT", or http; the port may be left out. Throws invalid_argument.
Endpoint parse_endpoint(std::string_view url);

/// AWS's own in a region.
Endpoint aws_s3_endpoint(std::string_view region);

/// True for names that can stand in a host: "eu-central-1".
bool is_region(std::string_view name);

}  // namespace shardwise::detail
