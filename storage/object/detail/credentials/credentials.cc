#include "shardwise/storage/object/detail/credentials/credentials.h"

#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "shardwise/shard/error.h"
#include "shardwise/shard/text.h"
#include "shardwise/storage/detail/json_reader.h"
#include "shardwise/storage/object/detail/credentials/command_output.h"
#include "shardwise/storage/object/detail/s3_xml.h"
#include "shardwise/storage/object/detail/times.h"
#include "shardwise/storage/utf8.h"

namespace shardwise::detail {
namespace {

constexpr std::int64_t kRefreshBefore = 300;  // seconds before keys expire
constexpr std::size_t kMostCredentialsBytes = std::size_t{64} << 10;
constexpr int kCommandMs = 60'000;

/// Reads an object's texts; other members may hold anything.
class KeysJson final : public JsonReader {
 public:
  explicit KeysJson(Credentials& keys) : keys_(keys) {}

  std::string expiration, code;

  bool start_object() override { return ++depth_ > 0; }
  bool end_object(std::size_t) override { return depth_-- > 0; }
  bool start_array() override { return ++depth_ > 0; }
  bool end_array(std::size_t) override { return depth_-- > 0; }
  bool key(std::string_view key) override {
    if (depth_ == 1) member_ = key;
    return true;
  }
  bool string(std::string_view text) override {
    if (depth_ == 0) return false;
    if (depth_ > 1) return true;
    if (member_ == "AccessKeyId") keys_.access_key_id = text;
    if (member_ == "SecretAccessKey") keys_.secret_access_key = text;
    if (member_ == "SessionToken" || member_ == "Token") keys_.session_token = text;
    if (member_ == "Expiration") expiration = text;
    if (member_ == "Code") code = text;
    return true;
  }

 private:
  bool refuse(std::string_view) override { return depth_ > 0; }
  bool unreadable(const JsonProblem&) override { return false; }

  Credentials& keys_;
  std::string member_;
  int depth_ = 0;
};

bool is_trusted_http_host(std::string_view url) {
  if (url.starts_with("https://")) return true;
  constexpr std::string_view kScheme = "http://";
  if (!url.starts_with(kScheme)) return false;
  std::string_view host = url.substr(kScheme.size());
  host = host.substr(0, host.find_first_of("/?#"));
  host =
      host.starts_with('[') ? host.substr(0, host.find(']') + 1) : host.substr(0, host.find(':'));
  return is_loopback_host(host) || host == "169.254.170.2" || host == "169.254.170.23" ||
         host == "[fd00:ec2::23]";
}

HttpAnswer send_or_throw(HttpClient& http, const HttpRequest& request, std::string_view operation) {
  HttpAnswer answer = http.send(request);
  if (answer.status == 200) return answer;
  const auto error = parse_s3_error(answer.body);
  throw Error(ErrorCode::io,
              fmt::format("{}: found {}, needed status 200", operation,
                          answer.status == 0 ? answer.problem
                          : error            ? fmt::format("status {}, {}: {}", answer.status,
                                                           shown(error->code), shown(error->message))
                                             : fmt::format("status {}", answer.status)));
}

std::string first_line(const std::string& path, std::string_view operation) {
  std::string text;
  if (!read_small_file(path, text)) {
    throw Error(ErrorCode::io,
                fmt::format("{}: found no file {}, needed one with a token", operation, path));
  }
  return std::string(trim(text));
}

}  // namespace

WallClock system_wall_clock() {
  return [] {
    return std::int64_t{std::chrono::duration_cast<std::chrono::seconds>(
                            std::chrono::system_clock::now().time_since_epoch())
                            .count()};
  };
}

Credentials parse_json_credentials(std::string_view text, std::string_view operation) {
  const auto refuse = [operation](std::string_view found) {
    throw Error(ErrorCode::corrupt, fmt::format("{}: found {}, needed JSON with AccessKeyId and "
                                                "SecretAccessKey",
                                                operation, found));
  };
  Credentials keys;
  KeysJson json(keys);
  if (text.size() > kMostCredentialsBytes) refuse("a text of " + human_bytes(text.size()));
  if (!json.parse(text)) refuse("a text that is not an object in JSON");
  if (!json.code.empty() && json.code != "Success") refuse("the code " + shown(json.code));
  if (keys.access_key_id.empty() || keys.secret_access_key.empty()) refuse("no keys");
  if (!json.expiration.empty()) {
    const auto time = parse_iso_time(json.expiration);
    if (!time) refuse("Expiration " + shown(json.expiration));
    keys.expires = *time;
  }
  return keys;
}

CredentialsFinder::CredentialsFinder(Environment environment, WallClock clock, std::string region)
    : environment_(std::move(environment)),
      clock_(std::move(clock)),
      region_(std::move(region)),
      files_(environment_),
      http_({.connect_ms = 1'000,
             .stall_s = 5,
             .whole_ms = 10'000,
             .ca_file = environment_("AWS_CA_BUNDLE")}) {}

Credentials CredentialsFinder::get() {
  const MutexLock lock(mutex_);
  const std::uint64_t stamp = files_.stamp();
  if (known_ && stamp == stamp_ &&
      (known_->expires == 0 || clock_() < known_->expires - kRefreshBefore)) {
    return *known_;
  }
  try {
    Credentials fetched = fetch();
    known_ = std::move(fetched);
  } catch (const Error&) {
    // Their source may be back before they expire.
    if (!known_ || known_->expires == 0 || clock_() >= known_->expires) throw;
    return *known_;
  }
  stamp_ = stamp;
  return *known_;
}

void CredentialsFinder::expire(const Credentials& refused) {
  const MutexLock lock(mutex_);
  if (known_ == refused) known_.reset();  // unless another thread has fetched since
}

Credentials CredentialsFinder::fetch() {
  if (auto keys = from_environment()) return *keys;
  const std::string token_file = environment_("AWS_WEB_IDENTITY_TOKEN_FILE");
  const std::string role = environment_("AWS_ROLE_ARN");
  if (!token_file.empty() && !role.empty()) {
    return from_web_identity(token_file, role, environment_("AWS_ROLE_SESSION_NAME"));
  }
  if (auto keys = from_profile()) return *keys;
  if (auto keys = from_container()) return *keys;
  if (auto keys = from_instance()) return *keys;
  throw Error(
      ErrorCode::io,
      fmt::format("find credentials: found none in AWS_ACCESS_KEY_ID, "
                  "AWS_WEB_IDENTITY_TOKEN_FILE, the profile {} of {} and {}, "
                  "AWS_CONTAINER_CREDENTIALS_FULL_URI and this machine's metadata, "
                  "needed keys in one of them",
                  shown(files_.profile()), files_.credentials_path(), files_.config_path()));
}

std::optional<Credentials> CredentialsFinder::from_environment() const {
  Credentials keys{.access_key_id = environment_("AWS_ACCESS_KEY_ID"),
                   .secret_access_key = environment_("AWS_SECRET_ACCESS_KEY"),
                   .session_token = environment_("AWS_SESSION_TOKEN")};
  if (keys.access_key_id.empty() && keys.secret_access_key.empty()) return {};
  if (keys.access_key_id.empty() || keys.secret_access_key.empty()) {
    throw Error(ErrorCode::io,
                "find credentials: found one of AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY, needed both");
  }
  return keys;
}

std::optional<Credentials> CredentialsFinder::from_profile() {
  const Profile profile = files_.read();
  const auto value = [&profile](std::string_view name) {
    const auto found = profile.find(name);
    return found != profile.end() ? found->second : std::string();
  };
  Credentials keys{.access_key_id = value("aws_access_key_id"),
                   .secret_access_key = value("aws_secret_access_key"),
                   .session_token = value("aws_session_token")};
  if (!keys.access_key_id.empty() && !keys.secret_access_key.empty()) return keys;
  if (!value("web_identity_token_file").empty() && !value("role_arn").empty()) {
    return from_web_identity(value("web_identity_token_file"), value("role_arn"),
                             value("role_session_name"));
  }
  if (const std::string command = value("credential_process"); !command.empty()) {
    return parse_json_credentials(command_output(command, kMostCredentialsBytes, kCommandMs),
                                  "read what credential_process gives");
  }
  for (const std::string_view name : {"sso_session", "sso_start_url", "role_arn"}) {
    if (profile.find(name) == profile.end()) continue;
    throw Error(ErrorCode::unsupported,
                fmt::format("read the profile {}: found {}, needed keys or a credential_process, "
                            "such as \"aws configure export-credentials --profile {}\"",
                            shown(files_.profile()), name, files_.profile()));
  }
  return {};
}

std::optional<Credentials> CredentialsFinder::from_container() {
  constexpr std::string_view kOperation = "read the container's credentials";
  const std::string relative = environment_("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
  std::string url = environment_("AWS_CONTAINER_CREDENTIALS_FULL_URI");
  if (!relative.empty()) url = "http://169.254.170.2" + relative;
  if (url.empty()) return {};
  if (!is_trusted_http_host(url)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}: found {} in AWS_CONTAINER_CREDENTIALS_FULL_URI, needed https, or "
                            "http to this machine or 169.254.170.2",
                            kOperation, shown(url)));
  }
  std::string token = environment_("AWS_CONTAINER_AUTHORIZATION_TOKEN");
  const std::string token_file = environment_("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
  if (!token_file.empty()) token = first_line(token_file, kOperation);
  HttpRequest request{.method = "GET", .url = url};
  if (!token.empty()) request.headers.emplace_back("authorization", token);
  return parse_json_credentials(send_or_throw(http_, request, kOperation).body, kOperation);
}

std::optional<Credentials> CredentialsFinder::from_instance() {
  constexpr std::string_view kOperation = "read this instance's credentials";
  if (environment_("AWS_EC2_METADATA_DISABLED") == "true") return {};
  std::string base = environment_("AWS_EC2_METADATA_SERVICE_ENDPOINT");
  if (base.empty()) base = "http://169.254.169.254";
  while (base.ends_with('/')) base.pop_back();
  HttpRequest request{.method = "PUT",
                      .url = base + "/latest/api/token",
                      .headers = {{"x-aws-ec2-metadata-token-ttl-seconds", "21600"}}};
  const HttpAnswer token = http_.send(request);
  if (token.status != 200) return {};  // this is no EC2 instance
  request = {.method = "GET",
             .url = base + "/latest/meta-data/iam/security-credentials/",
             .headers = {{"x-aws-ec2-metadata-token", std::string(trim(token.body))}}};
  const HttpAnswer roles = http_.send(request);
  const std::string role(trim(split(roles.body, '\n').front()));
  if (roles.status != 200 || role.empty()) return {};  // an instance without a role
  request.url += percent_encoded(role, Slash::encode);
  return parse_json_credentials(send_or_throw(http_, request, kOperation).body, kOperation);
}

Credentials CredentialsFinder::from_web_identity(const std::string& token_file,
                                                 const std::string& role,
                                                 const std::string& session) {
  constexpr std::string_view kOperation = "assume a role by a web identity";
  std::string url = environment_("AWS_ENDPOINT_URL_STS");
  if (url.empty()) {
    url = fmt::format("https://sts.{}.amazonaws.com{}", region_,
                      region_.starts_with("cn-") ? ".cn" : "");
  }
  // The token is in the body: a URL may end up in a log.
  const std::string body =
      canonical_query({{"Action", "AssumeRoleWithWebIdentity"},
                       {"Version", "2011-06-15"},
                       {"RoleArn", role},
                       {"RoleSessionName", session.empty() ? "shardwise" : session},
                       {"WebIdentityToken", first_line(token_file, kOperation)}});
  const HttpRequest request{.method = "POST",
                            .url = url + "/",
                            .headers = {{"content-type", "application/x-www-form-urlencoded"}},
                            .body = std::as_bytes(std::span(body))};
  return parse_assumed_role(send_or_throw(http_, request, kOperation).body, kOperation);
}

}  // namespace shardwise::detail
