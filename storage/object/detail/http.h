#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "shardwise/storage/object/detail/sigv4.h"

namespace shardwise::detail {

/// A request as it is sent: the path in `url` is encoded, header names are in lower case.
struct HttpRequest {
  std::string method, url;
  NamedTexts headers = {};
  std::span<const std::byte> body = {};

  /// Where the body of an answer with status 206 or 200 goes. If it is empty, and for other
  /// statuses, it goes to HttpAnswer::body.
  std::span<std::byte> into = {};
};

struct HttpAnswer {
  int status = 0;              ///< 0: there is no whole answer, and `problem` says why
  bool may_have_left = false;  ///< some bytes of the request may have been sent
  std::string problem = {};
  NamedTexts headers = {};  ///< names in lower case
  std::string body = {};
  std::size_t received = 0;  ///< bytes in HttpRequest::into

  /// The value of the first header of that name; empty without one.
  std::string_view header(std::string_view name) const;
};

struct HttpOptions {
  int connect_ms = 10'000;
  int stall_s = 60;          ///< a transfer of less than a byte a second for so long has failed
  int whole_ms = 0;          ///< for request and answer together; 0: without a limit
  std::string ca_file = {};  ///< certificates to trust; empty: the system's
};

/// Sends HTTP/1.1 requests by libcurl, each on the caller's thread; connections are kept for later
/// requests. Certificates are checked, redirects are answers like others, no signal is used, and a
/// loopback host is never asked through a proxy. Each call sends its request at most once. Answers
/// are bounded: 256 headers of 64 KiB in all, a body of 32 MiB. Thread-safe.
class HttpClient {
 public:
  /// Throws unsupported without libcurl.
  explicit HttpClient(HttpOptions options);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  /// Throws corrupt if the answer is longer than `into` or a bound, io if the server's certificate
  /// is not trusted, invalid_argument for a header with control characters.
  HttpAnswer send(const HttpRequest& request);

 private:
  class Pool;
  const HttpOptions options_;
  std::unique_ptr<Pool> pool_;
};

/// True for "localhost", names below it, 127.0.0.0/8 and ::1.
bool is_loopback_host(std::string_view host);

}  // namespace shardwise::detail
