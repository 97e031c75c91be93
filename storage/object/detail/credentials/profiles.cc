#include "shardwise/storage/object/detail/credentials/profiles.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "shardwise/shard/error.h"
#include "shardwise/shard/text.h"
#include "shardwise/storage/utf8.h"

namespace shardwise::detail {
namespace {

constexpr std::size_t kMostProfileBytes = std::size_t{1} << 20;

/// The name in "[NAME]" or "[profile NAME]"; empty if the section is of another kind.
std::string_view profile_of(std::string_view section, ProfileKind kind) {
  section = trim(section);
  if (kind == ProfileKind::credentials) return section;
  constexpr std::string_view kWord = "profile";
  if (section.starts_with(kWord) && section.size() > kWord.size() &&
      (section[kWord.size()] == ' ' || section[kWord.size()] == '\t')) {
    std::string_view name = trim(section.substr(kWord.size()));
    const char quote = name.empty() ? '\0' : name.front();
    if (name.size() >= 2 && (quote == '"' || quote == '\'') && name.back() == quote) {
      name = name.substr(1, name.size() - 2);
    }
    return name;
  }
  return section == "default" ? section : std::string_view();
}

}  // namespace

Environment process_environment() {
  return [](const char* name) {
    const char* const value = std::getenv(name);
    return std::string(value != nullptr ? value : "");
  };
}

Profile parse_profile(std::string_view text, std::string_view path, ProfileKind kind,
                      std::string_view name) {
  Profile profile;
  bool is_inside = false, has_section = false;
  int number = 0;
  for (const std::string_view line : split(text, '\n')) {
    ++number;
    const std::string_view words = trim(line);
    if (words.empty() || words.front() == '#' || words.front() == ';') continue;
    if (words.front() == '[') {
      const std::size_t end = words.find(']');
      if (end != words.npos) {
        has_section = true;
        is_inside = profile_of(words.substr(1, end - 1), kind) == name;
        continue;
      }
    }
    const std::size_t equals = words.find('=');
    const bool goes_on = line.front() == ' ' || line.front() == '\t';
    if (goes_on && has_section) continue;
    if (equals == words.npos || equals == 0 || !has_section) {
      throw Error(
          ErrorCode::corrupt,
          fmt::format("read {}: found line {}, needed [PROFILE] or NAME = VALUE", path, number));
    }
    if (!is_inside) continue;
    profile.insert_or_assign(std::string(trim(words.substr(0, equals))),
                             std::string(trim(words.substr(equals + 1))));
  }
  return profile;
}

ProfileFiles::ProfileFiles(const Environment& environment)
    : credentials_path_(environment("AWS_SHARED_CREDENTIALS_FILE")),
      config_path_(environment("AWS_CONFIG_FILE")),
      profile_(environment("AWS_PROFILE")),
      must_exist_(!profile_.empty()) {
  const std::string home = environment("HOME");
  if (credentials_path_.empty()) credentials_path_ = home + "/.aws/credentials";
  if (config_path_.empty()) config_path_ = home + "/.aws/config";
  if (profile_.empty()) profile_ = "default";
}

Profile ProfileFiles::read() const {
  Profile profile;
  std::string text;
  if (read_small_file(credentials_path_, text)) {
    profile = parse_profile(text, credentials_path_, ProfileKind::credentials, profile_);
  }
  if (read_small_file(config_path_, text)) {
    profile.merge(parse_profile(text, config_path_, ProfileKind::config, profile_));
  }
  if (profile.empty() && must_exist_) {
    throw Error(ErrorCode::not_found,
                fmt::format("read the profile {}: found none in {} and {}, needed the one that "
                            "AWS_PROFILE names",
                            shown(profile_), credentials_path_, config_path_));
  }
  return profile;
}

std::uint64_t ProfileFiles::stamp() const {
  std::uint64_t stamp = 0;
  for (const std::string& path : {credentials_path_, config_path_}) {
    struct stat facts = {};
    if (::stat(path.c_str(), &facts) != 0) facts = {};
    for (const auto part :
         {static_cast<std::uint64_t>(facts.st_mtim.tv_sec),
          static_cast<std::uint64_t>(facts.st_mtim.tv_nsec),
          static_cast<std::uint64_t>(facts.st_size), static_cast<std::uint64_t>(facts.st_ino)}) {
      stamp = (stamp ^ part) * 0x9e3779b97f4a7c15;
      stamp ^= stamp >> 29;
    }
  }
  return stamp;
}

bool read_small_file(const std::string& path, std::string& text) {
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    if (errno == ENOENT || errno == ENOTDIR) return false;
    throw Error(ErrorCode::io, fmt::format("open {}: {}", path, std::strerror(errno)), errno);
  }
  text.assign(kMostProfileBytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(in.gcount()));
  if (in.bad() || text.size() > kMostProfileBytes) {
    throw Error(ErrorCode::io,
                fmt::format("read {}: found {}, needed a text of {} at most", path,
                            in.bad() ? "an error" : "more bytes", human_bytes(kMostProfileBytes)));
  }
  return true;
}

}  // namespace shardwise::detail
