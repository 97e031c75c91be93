#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "shardwise/shard/host/mutex.h"
#include "shardwise/storage/object/detail/credentials/profiles.h"
#include "shardwise/storage/object/detail/http.h"
#include "shardwise/storage/object/detail/sigv4.h"

namespace shardwise::detail {

/// Seconds since 1970.
using WallClock = std::function<std::int64_t()>;

WallClock system_wall_clock();

/// Keys in the JSON that a credential_process, a container's endpoint and an instance's metadata
/// give. Throws corrupt with `operation`, never with the text.
Credentials parse_json_credentials(std::string_view text, std::string_view operation);

/// Finds keys where the AWS tools look, in their order: AWS_ACCESS_KEY_ID; a web identity
/// (AWS_WEB_IDENTITY_TOKEN_FILE); the profile's keys, web identity or credential_process; a
/// container's endpoint; an EC2 instance's metadata (IMDSv2).
///
/// Keys are kept until 5 minutes before they expire, or until a file of profiles changes. Secrets
/// stay out of messages. Thread-safe: others wait while one thread fetches.
class CredentialsFinder {
 public:
  /// `region` is that of STS.
  CredentialsFinder(Environment environment, WallClock clock, std::string region);

  /// Throws io if there are no keys, with the places that were looked at; unsupported for a
  /// profile that needs SSO or another role; corrupt for bad files and answers.
  Credentials get();

  /// The store has refused these as expired: the next get() fetches others.
  void expire(const Credentials& refused);

 private:
  Credentials fetch() SHARDWISE_REQUIRES(mutex_);
  std::optional<Credentials> from_environment() const;
  std::optional<Credentials> from_profile();
  std::optional<Credentials> from_container();
  std::optional<Credentials> from_instance();
  Credentials from_web_identity(const std::string& token_file, const std::string& role,
                                const std::string& session);

  const Environment environment_;
  const WallClock clock_;
  const std::string region_;
  const ProfileFiles files_;
  HttpClient http_;

  Mutex mutex_;
  std::optional<Credentials> known_ SHARDWISE_GUARDED_BY(mutex_);
  std::uint64_t stamp_ SHARDWISE_GUARDED_BY(mutex_) = 0;  // of the files when they were read
};

}  // namespace shardwise::detail
