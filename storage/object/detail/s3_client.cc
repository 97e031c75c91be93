#include "shardwise/storage/object/detail/s3_client.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "shardwise/shard/text.h"
#include "shardwise/storage/object/detail/http_range.h"
#include "shardwise/storage/object/detail/s3_requests.h"
#include "shardwise/storage/object/detail/s3_xml.h"
#include "shardwise/storage/object/detail/times.h"
#include "shardwise/storage/utf8.h"

namespace shardwise::detail {
namespace {

constexpr std::size_t kMostKeyBytes = 1024;
constexpr int kMostPages = 10'000;

void check_key(std::string_view key) {
  if (!key.empty() && key.size() <= kMostKeyBytes && key.find('\0') == key.npos && is_utf8(key)) {
    return;
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("name an object {}: found {} bytes, needed 1 to {} of UTF-8 without NUL",
                          shown(key), key.size(), kMostKeyBytes));
}

class S3Client final : public ObjectClient {
 public:
  S3Client(BucketAddress address, const HttpOptions& options)
      : bucket_(address.bucket), requests_(std::move(address), options, process_environment()) {}

  std::string name() const override { return "s3://" + bucket_; }

  RequestResult put(const std::string& key, std::span<const std::byte> body,
                    const PutCondition& condition, std::string& etag) override {
    check_key(key);
    S3Request request{.operation = "put", .method = "PUT", .key = key, .body = body};
    if (condition.if_absent) request.headers.emplace_back("if-none-match", "*");
    if (!condition.if_match.empty()) request.headers.emplace_back("if-match", condition.if_match);
    return send_for_etag(request, etag);
  }

  RequestResult get(const std::string& key, std::uint64_t offset, std::span<std::byte> into,
                    const std::string& if_match) override {
    check_key(key);
    S3Request request{.operation = "get", .method = "GET", .key = key, .into = into};
    if (!if_match.empty()) request.headers.emplace_back("if-match", if_match);
    if (into.empty()) return get_nothing(std::move(request), offset);
    const std::uint64_t last = offset + into.size() - 1;
    request.headers.emplace_back("range", fmt::format("bytes={}-{}", offset, last));
    const S3Answer answer = requests_.send(request);
    if (answer.result.ok()) {
      check_range(answer.http, {requests_.describe(request), offset, into.size()});
      // A store that does not heed If-Match tells by its ETag.
      const std::string_view etag = answer.http.header("etag");
      if (!if_match.empty() && !etag.empty() && etag != if_match) {
        return {RequestStatus::condition_failed,
                fmt::format("{}: found the ETag {}", requests_.describe(request), shown(etag))};
      }
    }
    return answer.result;
  }

  RequestResult head(const std::string& key, ObjectInfo& info) override {
    check_key(key);
    const S3Request request{.operation = "head", .method = "HEAD", .key = key};
    const S3Answer answer = requests_.send(request);
    if (answer.result.ok()) info = info_of(request, answer.http);
    return answer.result;
  }

  RequestResult list(const std::string& prefix, const std::string& delimiter,
                     const std::string& from, ObjectPage& page) override {
    S3Request request{.operation = "list", .method = "GET"};
    request.query = {{"list-type", "2"}, {"encoding-type", "url"}, {"prefix", prefix}};
    if (!delimiter.empty()) request.query.emplace_back("delimiter", delimiter);
    if (!from.empty()) request.query.emplace_back("continuation-token", from);
    const S3Answer answer = requests_.send(request);
    if (!answer.result.ok()) return answer.result;
    const std::string operation = requests_.describe(request);
    page = parse_object_page(answer.http.body, operation);
    const auto check = [&](const std::string& key) {
      if (!key.starts_with(prefix)) {
        refuse_answer(operation, "the key " + shown(key), "keys with " + shown(prefix));
      }
    };
    for (const ObjectInfo& object : page.objects) check(object.key);
    for (const std::string& folded : page.prefixes) check(folded);
    return {};
  }

  RequestResult remove(const std::string& key) override {
    check_key(key);
    return done_if_gone({.operation = "remove", .method = "DELETE", .key = key});
  }

  RequestResult begin_upload(const std::string& key, std::string& id) override {
    check_key(key);
    const S3Request request{.operation = "begin an upload of",
                            .method = "POST",
                            .key = key,
                            .query = {{"uploads", ""}}};
    const S3Answer answer = requests_.send(request);
    if (!answer.result.ok()) return answer.result;
    id = parse_upload_id(answer.http.body, requests_.describe(request));
    return {};
  }

  RequestResult put_part(const OpenUpload& upload, int number, std::span<const std::byte> body,
                         std::string& etag) override {
    check_key(upload.key);
    return send_for_etag(
        {.operation = "put a part of",
         .method = "PUT",
         .key = upload.key,
         .query = {{"partNumber", fmt::format("{}", number)}, {"uploadId", upload.id}},
         .body = body},
        etag);
  }

  RequestResult complete_upload(const OpenUpload& upload, std::span<const std::string> etags,
                                std::string& etag) override {
    check_key(upload.key);
    const std::string xml = completed_parts_xml(etags);
    const S3Request request{.operation = "complete the upload of",
                            .method = "POST",
                            .key = upload.key,
                            .query = {{"uploadId", upload.id}},
                            .headers = {{"content-type", "application/xml"}},
                            .body = std::as_bytes(std::span(xml))};
    const S3Answer answer = requests_.send(request);
    if (!answer.result.ok()) return answer.result;
    // The store answers 200 before it is done, and says only then how it ended.
    RequestResult result = requests_.result_of_body(request, answer.http);
    if (!result.ok()) return result;
    etag = parse_completed_etag(answer.http.body, requests_.describe(request));
    return {};
  }

  RequestResult abort_upload(const OpenUpload& upload) override {
    check_key(upload.key);
    return done_if_gone({.operation = "abort the upload of",
                         .method = "DELETE",
                         .key = upload.key,
                         .query = {{"uploadId", upload.id}}});
  }

  RequestResult list_uploads(const std::string& prefix, std::vector<OpenUpload>& uploads) override {
    std::vector<OpenUpload> all;
    UploadPage page;
    for (int pages = 0; pages < kMostPages; ++pages) {
      S3Request request{.operation = "list the uploads in", .method = "GET"};
      request.query = {{"uploads", ""}, {"encoding-type", "url"}, {"prefix", prefix}};
      if (pages > 0) {
        request.query.emplace_back("key-marker", page.key_marker);
        request.query.emplace_back("upload-id-marker", page.id_marker);
      }
      const S3Answer answer = requests_.send(request);
      if (!answer.result.ok()) return answer.result;
      page = parse_upload_page(answer.http.body, requests_.describe(request));
      std::ranges::move(page.uploads, std::back_inserter(all));
      if (page.key_marker.empty()) break;
    }
    std::erase_if(all, [&](const OpenUpload& one) { return !one.key.starts_with(prefix); });
    uploads = std::move(all);
    return {};
  }

 private:
  RequestResult send_for_etag(const S3Request& request, std::string& etag) {
    const S3Answer answer = requests_.send(request);
    if (!answer.result.ok()) return answer.result;
    etag = answer.http.header("etag");
    if (etag.empty()) refuse_answer(requests_.describe(request), "no ETag", "one");
    return {};
  }

  RequestResult done_if_gone(const S3Request& request) {
    RequestResult result = requests_.send(request).result;
    return result.status == RequestStatus::not_found ? RequestResult() : result;
  }

  /// HTTP has no range of no bytes.
  RequestResult get_nothing(S3Request request, std::uint64_t offset) {
    request.method = "HEAD";
    const S3Answer answer = requests_.send(request);
    if (answer.result.ok()) {
      check_size(info_of(request, answer.http).size, {requests_.describe(request), offset, 0});
    }
    return answer.result;
  }

  ObjectInfo info_of(const S3Request& request, const HttpAnswer& answer) const {
    const auto size = parse_count(answer.header("content-length"));
    if (!size) {
      refuse_answer(requests_.describe(request),
                    "Content-Length " + shown(answer.header("content-length")), "a number");
    }
    return {.key = request.key,
            .size = static_cast<std::uint64_t>(*size),
            .etag = std::string(answer.header("etag")),
            .modified = parse_http_time(answer.header("last-modified")).value_or(0)};
  }

  const std::string bucket_;
  S3Requests requests_;
};

std::string first_set(const Environment& environment, std::initializer_list<const char*> names) {
  for (const char* const name : names) {
    if (std::string value = environment(name); !value.empty()) return value;
  }
  return {};
}

std::string region_of(const S3Location& location, const Environment& environment) {
  std::string region = location.region;
  if (region.empty()) region = first_set(environment, {"AWS_REGION", "AWS_DEFAULT_REGION"});
  if (region.empty()) {
    const Profile profile = ProfileFiles(environment).read();
    const auto found = profile.find("region");
    region = found != profile.end() ? found->second : "us-east-1";
  }
  if (is_region(region)) return region;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("open {}: found the region {}, needed a-z, 0-9 and -",
                          location.to_string(), shown(region)));
}

BucketAddress address_of(const S3Location& location) {
  const Environment environment = process_environment();
  BucketAddress address{.bucket = location.bucket, .region = region_of(location, environment)};
  std::string endpoint = location.endpoint;
  if (endpoint.empty()) {
    endpoint = first_set(environment, {"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"});
  }
  address.endpoint = endpoint.empty() ? aws_s3_endpoint(address.region) : parse_endpoint(endpoint);
  const bool fits_in_host =
      location.bucket.find('.') == std::string::npos && !address.endpoint.has_address();
  if (location.style == BucketStyle::virtual_host && !fits_in_host) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("open {}: found style=virtual at {}, needed style=path for a bucket "
                            "with dots or an address in digits",
                            location.to_string(), address.endpoint.authority));
  }
  address.is_in_host =
      location.style == BucketStyle::virtual_host ||
      (location.style == BucketStyle::automatic && fits_in_host && endpoint.empty());
  return address;
}

}  // namespace

std::shared_ptr<ObjectClient> open_s3(const S3Location& location, const S3Options& options) {
  return std::make_shared<S3Client>(address_of(location),
                                    HttpOptions{.connect_ms = options.connect_ms,
                                                .stall_s = options.stall_s,
                                                .ca_file = process_environment()("AWS_CA_BUNDLE")});
}

}  // namespace shardwise::detail
