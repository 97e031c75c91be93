#include "shardwise/storage/object/detail/endpoint.h"

#include <fmt/format.h>

#include <algorithm>

#include "shardwise/shard/error.h"
#include "shardwise/shard/text.h"
#include "shardwise/storage/utf8.h"

namespace shardwise::detail {

bool Endpoint::has_address() const {
  return host.starts_with('[') || host.find_first_not_of("0123456789.") == std::string::npos;
}

Endpoint parse_endpoint(std::string_view url) {
  const auto refuse = [url](std::string_view found) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("read the endpoint {}: found {}, needed https://HOST:PORT or "
                            "http://HOST:PORT",
                            shown(url), found));
  };
  Endpoint endpoint;
  std::string_view rest = url;
  if (rest.starts_with("https://")) {
    rest.remove_prefix(8);
  } else if (rest.starts_with("http://")) {
    endpoint.is_tls = false;
    rest.remove_prefix(7);
  } else {
    refuse("no https:// or http://");
  }
  if (rest.ends_with('/')) rest.remove_suffix(1);
  const std::size_t host_end =
      rest.starts_with('[') ? rest.find(']') + 1 : std::min(rest.find(':'), rest.size());
  endpoint.host = rest.substr(0, host_end);
  const bool is_six = rest.starts_with('[');
  const std::string_view allowed = is_six ? "[]0123456789abcdefABCDEF:."
                                          : "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                            "0123456789-._";
  if (endpoint.host.empty()) refuse("no host");
  if (endpoint.host.size() > 253 || endpoint.host.find_first_not_of(allowed) != std::string::npos) {
    refuse("the host " + shown(endpoint.host));
  }
  endpoint.authority = endpoint.host;
  rest.remove_prefix(host_end);
  if (rest.empty()) return endpoint;
  const auto port = rest.front() == ':' ? parse_count(rest.substr(1)) : std::nullopt;
  if (!port || *port < 1 || *port > 65'535) refuse(shown(rest) + " after the host");
  if (*port != (endpoint.is_tls ? 443 : 80)) {
    endpoint.authority += fmt::format(":{}", *port);
  }
  return endpoint;
}

Endpoint aws_s3_endpoint(std::string_view region) {
  const std::string host =
      fmt::format("s3.{}.amazonaws.com{}", region, region.starts_with("cn-") ? ".cn" : "");
  return {.host = host, .authority = host};
}

bool is_region(std::string_view name) {
  return !name.empty() && name.size() <= 64 && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
  });
}

}  // namespace shardwise::detail
