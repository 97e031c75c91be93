#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace shardwise::detail {

/// The value of an environment variable; empty if it is not set.
using Environment = std::function<std::string(const char* name)>;

Environment process_environment();

/// The settings of one profile, by name.
using Profile = std::map<std::string, std::string, std::less<>>;

enum class ProfileKind { credentials, config };  ///< config has "[profile NAME]", or "[default]"

/// The profile in the text of a file of the AWS tools; empty if it is not there. Lines that belong
/// to a setting of several lines are skipped. Throws corrupt with the path and the number of a line
/// that is neither a section nor a setting, never with its text, which may be a secret.
Profile parse_profile(std::string_view text, std::string_view path, ProfileKind kind,
                      std::string_view name);

/// Where the AWS tools keep profiles: AWS_SHARED_CREDENTIALS_FILE, AWS_CONFIG_FILE, or ~/.aws;
/// AWS_PROFILE. Thread-compatible.
class ProfileFiles {
 public:
  explicit ProfileFiles(const Environment& environment);

  /// From both files; the credentials file wins. Files that do not exist hold nothing. Throws
  /// corrupt, io, and not_found if AWS_PROFILE names a profile that is in neither.
  Profile read() const;

  /// Another number if one of the files has changed: of times and sizes.
  std::uint64_t stamp() const;

  const std::string& profile() const { return profile_; }
  const std::string& credentials_path() const { return credentials_path_; }
  const std::string& config_path() const { return config_path_; }

 private:
  std::string credentials_path_, config_path_, profile_;
  bool must_exist_;
};

/// The whole file, of 1 MiB at most. False without a file. Throws io.
bool read_small_file(const std::string& path, std::string& text);

}  // namespace shardwise::detail
