#include "shardwise/storage/object/detail/s3_requests.h"

#include <fmt/format.h>

#include <algorithm>

#include "shardwise/shard/error.h"
#include "shardwise/shard/text.h"
#include "shardwise/storage/object/detail/s3_xml.h"
#include "shardwise/storage/object/detail/times.h"
#include "shardwise/storage/utf8.h"

namespace shardwise::detail {
namespace {

/// The status that a code means if it comes in an answer with status 200.
int status_of_code(std::string_view code) {
  struct CodeStatus {
    std::string_view code;
    int status;
  };
  static constexpr CodeStatus kStatuses[] = {{"SlowDown", 503},
                                             {"ServiceUnavailable", 503},
                                             {"NoSuchUpload", 404},
                                             {"NoSuchKey", 404},
                                             {"NoSuchBucket", 404},
                                             {"PreconditionFailed", 412},
                                             {"ConditionalRequestConflict", 409},
                                             {"AccessDenied", 403},
                                             {"InvalidPart", 400},
                                             {"InvalidPartOrder", 400},
                                             {"EntityTooSmall", 400}};
  const auto* const found = std::ranges::find(kStatuses, code, &CodeStatus::code);
  return found != std::end(kStatuses) ? found->status : 500;
}

S3Error error_of(const HttpAnswer& answer) {
  S3Error error = parse_s3_error(answer.body).value_or(S3Error());
  if (error.code.empty()) error.code = answer.header("x-amz-error-code");  // of a HEAD
  if (error.request_id.empty()) error.request_id = answer.header("x-amz-request-id");
  if (error.region.empty()) error.region = answer.header("x-amz-bucket-region");
  return error;
}

bool are_keys_expired(const S3Request& request, const HttpAnswer& answer, const Credentials& keys) {
  if (answer.status != 400 && answer.status != 401 && answer.status != 403) return false;
  const std::string code = error_of(answer).code;
  if (code == "ExpiredToken" || code == "ExpiredTokenException" || code == "TokenRefreshRequired") {
    return true;
  }
  // The answer to a HEAD has no body that would say why.
  return code.empty() && request.method == "HEAD" && !keys.session_token.empty();
}

/// The user's way out of a refusal that no repeat mends.
std::string remedy(int status, const S3Error& error) {
  const std::string_view code = error.code;
  if (status == 301 || status == 302 || status == 307 || status == 308 ||
      code == "AuthorizationHeaderMalformed" || code == "IllegalLocationConstraintException") {
    return error.region.empty()
               ? "the bucket's region: ?region=NAME or AWS_REGION"
               : fmt::format("the bucket's region: ?region={}", in_one_line(error.region));
  }
  if (code == "NoSuchBucket") return "a bucket that exists";
  if (code == "RequestTimeTooSkewed") return "a clock within 15 minutes of the store's";
  if (code == "ExpiredToken") return "keys that have not expired";
  if (code == "SignatureDoesNotMatch" || code == "InvalidAccessKeyId" || code == "InvalidToken") {
    return "keys that the store knows: AWS_ACCESS_KEY_ID, AWS_PROFILE";
  }
  if (status == 401 || status == 403) return "rights to do this with these keys";
  if (status == 501 || status == 405) return "a store that can do this";
  return "a request that the store takes";
}

}  // namespace

S3Requests::S3Requests(BucketAddress address, const HttpOptions& options,
                       const Environment& environment)
    : address_(std::move(address)),
      http_(options),
      credentials_(environment, system_wall_clock(), address_.region) {}

std::string S3Requests::describe(const S3Request& request) const {
  return fmt::format("{} s3://{}{}{}", request.operation, address_.bucket,
                     request.key.empty() ? "" : "/", in_one_line(request.key));
}

S3Answer S3Requests::send(const S3Request& request) {
  Credentials keys = credentials_.get();
  HttpAnswer answer = send_signed(request, keys);
  if (are_keys_expired(request, answer, keys)) {
    credentials_.expire(keys);
    keys = credentials_.get();
    answer = send_signed(request, keys);
  }
  S3Answer done;
  done.result = result_of(request, answer);
  done.result.date = parse_http_time(answer.header("date")).value_or(0);
  if (done.result.ok()) done.http = std::move(answer);
  return done;
}

HttpAnswer S3Requests::send_signed(const S3Request& request, const Credentials& keys) {
  const Endpoint& endpoint = address_.endpoint;
  const std::string host =
      address_.is_in_host ? address_.bucket + "." + endpoint.authority : endpoint.authority;
  const std::string path = (address_.is_in_host   ? "/"
                            : request.key.empty() ? "/" + address_.bucket
                                                  : "/" + address_.bucket + "/") +
                           percent_encoded(request.key, Slash::keep);
  RequestToSign to_sign{
      .method = request.method,
      .path = path,
      .query = canonical_query(request.query),
      .headers = request.headers,
      // TLS protects the body; without it, its hash has to.
      .payload_hash = endpoint.is_tls ? "UNSIGNED-PAYLOAD" : sha256_hex(request.body)};
  to_sign.headers.emplace_back("host", host);
  to_sign.headers.emplace_back("x-amz-content-sha256", to_sign.payload_hash);
  to_sign.headers.emplace_back("x-amz-date", sigv4_time(system_wall_clock()()));
  if (!keys.session_token.empty()) {
    to_sign.headers.emplace_back("x-amz-security-token", keys.session_token);
  }
  HttpRequest http{.method = request.method,
                   .url = fmt::format("{}{}{}{}{}", endpoint.scheme(), host, path,
                                      to_sign.query.empty() ? "" : "?", to_sign.query),
                   .body = request.body,
                   .into = request.into};
  const std::string authorization =
      sigv4_authorization(to_sign, keys, {.region = address_.region, .service = "s3"});
  http.headers = std::move(to_sign.headers);
  http.headers.emplace_back("authorization", authorization);
  http.headers.emplace_back("user-agent", "shardwise");
  return http_.send(http);
}

RequestResult S3Requests::result_of(const S3Request& request, const HttpAnswer& answer) const {
  using enum RequestStatus;
  if (answer.status == 0) {
    return {answer.may_have_left ? unknown : busy,
            fmt::format("{}: found no answer of {}: {}", describe(request),
                        address_.endpoint.authority, answer.problem)};
  }
  if (answer.status == 200 || answer.status == 204 || answer.status == 206) return {};
  const S3Error error = error_of(answer);
  std::string message =
      fmt::format("{}: found status {} to {}", describe(request), answer.status, request.method);
  if (!error.code.empty()) message += ", " + in_one_line(error.code);
  if (!error.message.empty()) message += ", " + shown(error.message);
  if (!error.request_id.empty()) message += ", request " + in_one_line(error.request_id);
  if (error.code == "RequestTimeout") return {busy, std::move(message)};  // the body has not come
  switch (answer.status) {
    case 404:
      if (error.code == "NoSuchBucket") break;
      return {not_found, std::move(message)};
    case 412:
      return {condition_failed, std::move(message)};
    case 408:
    case 409:
    case 429:
    case 503:
      return {busy, std::move(message)};
    case 500:
    case 502:
    case 504:
      return {unknown, std::move(message)};
    case 416:
      throw Error(ErrorCode::corrupt, message + ", needed an object that goes on there");
    default:
      break;
  }
  const ErrorCode code = answer.status == 501 ? ErrorCode::unsupported : ErrorCode::io;
  throw Error(code, message + ", needed " + remedy(answer.status, error));
}

RequestResult S3Requests::result_of_body(const S3Request& request, const HttpAnswer& answer) const {
  const auto error = parse_s3_error(answer.body);
  if (!error) return {};
  HttpAnswer meant = answer;
  meant.status = status_of_code(error->code);
  return result_of(request, meant);
}

}  // namespace shardwise::detail
