#include "shardwise/storage/object/detail/web_client.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "shardwise/shard/error.h"
#include "shardwise/shard/text.h"
#include "shardwise/storage/object/detail/endpoint.h"
#include "shardwise/storage/object/detail/http_range.h"
#include "shardwise/storage/object/detail/times.h"
#include "shardwise/storage/utf8.h"

namespace shardwise::detail {
namespace {

constexpr std::size_t kMostWebUrlBytes = 16 << 10;

class WebClient final : public ObjectClient {
 public:
  WebClient(std::string origin, std::string query, std::shared_ptr<HttpClient> http)
      : origin_(std::move(origin)), query_(std::move(query)), http_(std::move(http)) {}

  std::string name() const override { return origin_; }

  RequestResult head(const std::string& key, ObjectInfo& info) override {
    HttpAnswer answer = http_->send(request("HEAD", key));
    RequestResult result = result_of("head", key, answer);
    if (result.ok()) {
      info = info_of(key, answer, parse_count(answer.header("content-length")));
      return result;
    }
    // A URL may be signed for GET alone.
    if (answer.status != 403 && answer.status != 405 && answer.status != 501) {
      return checked(std::move(result), "head", key, answer);
    }
    std::array<std::byte, 1> first;
    HttpRequest get = request("GET", key);
    get.headers.emplace_back("range", "bytes=0-0");
    get.into = first;
    answer = http_->send(get);
    const std::string_view range = answer.header("content-range");
    const auto size = parse_count(range.substr(std::min(range.find('/'), range.size() - 1) + 1));
    if (answer.status == 416 && size == 0) answer.status = 206;
    result = result_of("get", key, answer);
    if (!result.ok()) return checked(std::move(result), "get", key, answer);
    info = info_of(key, answer, size ? size : parse_count(answer.header("content-length")));
    return result;
  }

  RequestResult get(const std::string& key, std::uint64_t offset, std::span<std::byte> into,
                    const std::string& if_match) override {
    HttpRequest get = request("GET", key);
    get.into = into;
    get.headers.emplace_back("range", fmt::format("bytes={}-{}", offset, offset + into.size() - 1));
    if (if_match.starts_with('"')) get.headers.emplace_back("if-match", if_match);
    const HttpAnswer answer = http_->send(get);
    RequestResult result = result_of("get", key, answer);
    if (!result.ok()) return checked(std::move(result), "get", key, answer);
    if (const std::string found = tag_of(answer); !if_match.empty() && found != if_match) {
      return {RequestStatus::condition_failed,
              fmt::format("{}: found {}", describe("get", key), shown(found))};
    }
    check_range(answer, {describe("get", key), offset, into.size()});
    return result;
  }

  RequestResult put(const std::string& key, std::span<const std::byte>, const PutCondition&,
                    std::string&) override {
    refuse("put", key);
  }
  RequestResult list(const std::string& prefix, const std::string&, const std::string&,
                     ObjectPage&) override {
    refuse("list", prefix);
  }
  RequestResult remove(const std::string& key) override { refuse("remove", key); }
  RequestResult begin_upload(const std::string& key, std::string&) override { refuse("put", key); }
  RequestResult put_part(const OpenUpload& upload, int, std::span<const std::byte>,
                         std::string&) override {
    refuse("put", upload.key);
  }
  RequestResult complete_upload(const OpenUpload& upload, std::span<const std::string>,
                                std::string&) override {
    refuse("put", upload.key);
  }
  RequestResult abort_upload(const OpenUpload& upload) override { refuse("put", upload.key); }
  RequestResult list_uploads(const std::string& prefix, std::vector<OpenUpload>&) override {
    refuse("list", prefix);
  }

 private:
  HttpRequest request(const char* method, const std::string& key) const {
    return {.method = method,
            .url = fmt::format("{}/{}{}", origin_, key, query_),
            .headers = {{"user-agent", "shardwise"}, {"accept-encoding", "identity"}}};
  }

  std::string describe(std::string_view operation, const std::string& key) const {
    return fmt::format("{} {}/{}", operation, origin_, key);
  }

  [[noreturn]] void refuse(const char* operation, const std::string& key) const {
    throw Error(ErrorCode::unsupported,
                fmt::format("{}: files of a web server are only read", describe(operation, key)));
  }

  /// An ETag that is not weak names bytes; else the time of the last change has to.
  static std::string tag_of(const HttpAnswer& answer) {
    const std::string_view etag = answer.header("etag");
    return std::string(etag.starts_with('"') ? etag : answer.header("last-modified"));
  }

  ObjectInfo info_of(const std::string& key, const HttpAnswer& answer,
                     std::optional<std::int64_t> size) const {
    const std::string operation = describe("open", key);
    if (!size) refuse_answer(operation, "an answer without a length", "Content-Length");
    const std::string_view encoding = answer.header("content-encoding");
    if (!encoding.empty() && encoding != "identity") {
      refuse_answer(operation, "Content-Encoding " + shown(encoding), "the file's own bytes");
    }
    std::string tag = tag_of(answer);
    if (tag.empty()) {
      refuse_answer(operation, "neither an ETag nor Last-Modified",
                    "one, as a file that changes could not be told from itself");
    }
    return {.key = key,
            .size = static_cast<std::uint64_t>(*size),
            .etag = std::move(tag),
            .modified = parse_http_time(answer.header("last-modified")).value_or(0)};
  }

  RequestResult result_of(const char* operation, const std::string& key,
                          const HttpAnswer& answer) const {
    if (answer.status == 200 || answer.status == 206) return {};
    std::string message =
        answer.status == 0
            ? fmt::format("{}: found no answer: {}", describe(operation, key), answer.problem)
            : fmt::format("{}: found status {}", describe(operation, key), answer.status);
    return {status_of(answer.status), std::move(message)};
  }

  /// `unknown` also stands for statuses that no repeat mends: checked() throws for them.
  static RequestStatus status_of(int status) {
    switch (status) {
      case 404:
      case 410:
        return RequestStatus::not_found;
      case 412:
        return RequestStatus::condition_failed;
      case 408:
      case 425:
      case 429:
      case 503:
        return RequestStatus::busy;
      default:
        return RequestStatus::unknown;
    }
  }

  RequestResult checked(RequestResult result, const char* operation, const std::string& key,
                        const HttpAnswer& answer) const {
    const int status = answer.status;
    if (result.status != RequestStatus::unknown || status == 0 || status == 500 || status == 502 ||
        status == 504) {
      return result;
    }
    if (status >= 300 && status < 400) {
      const std::string_view to = answer.header("location");
      throw Error(ErrorCode::io, fmt::format("{}, a redirect, needed the URL that it leads to: {}",
                                             result.message, shown(to.substr(0, to.find('?')))));
    }
    if (status == 416) {
      refuse_answer(describe(operation, key), "an end before the range", "a file that goes on");
    }
    throw Error(ErrorCode::io,
                fmt::format("{}, needed {}", result.message,
                            status == 401 || status == 403 ? "rights to read it"
                                                           : "a server that gives ranges"));
  }

  const std::string origin_, query_;
  const std::shared_ptr<HttpClient> http_;
};

[[noreturn]] void refuse_web_url(std::string_view url, std::string_view found,
                                 std::string_view needed) {
  const std::size_t at = url.find('@');
  const std::string_view safe = at == url.npos ? url.substr(0, url.find('?')) : "";
  throw Error(ErrorCode::invalid_argument,
              fmt::format("open {}: found {}, needed {}", shown(safe), found, needed));
}

}  // namespace

WebFile open_web_file(std::string_view url, std::shared_ptr<HttpClient> http) {
  if (url.size() > kMostWebUrlBytes) refuse_web_url(url, "a longer URL", "at most 16 KiB");
  if (std::ranges::any_of(url, [](char c) { return c <= ' ' || c > '~'; })) {
    refuse_web_url(url, "a blank or a character that is not ASCII", "%XX in its place");
  }
  const std::size_t host = url.find("://") + 3;
  const std::size_t path = std::min(url.find_first_of("/?#", host), url.size());
  if (url.substr(host, path - host).find('@') != url.npos) {
    refuse_web_url(url, "a user or password", "none: they would come into messages");
  }
  const Endpoint endpoint = parse_endpoint(url.substr(0, path));
  if (!endpoint.is_tls && !is_loopback_host(endpoint.host)) {
    refuse_web_url(url, "plain http to another machine", "https://");
  }
  const std::string_view rest = url.substr(path, url.find('#') - path);
  const std::size_t question = std::min(rest.find('?'), rest.size());
  if (question < 2) refuse_web_url(url, "no file", "https://HOST/FILE");
  return {std::make_shared<WebClient>(endpoint.scheme() + endpoint.authority,
                                      std::string(rest.substr(question)), std::move(http)),
          std::string(rest.substr(1, question - 1))};
}

}  // namespace shardwise::detail
