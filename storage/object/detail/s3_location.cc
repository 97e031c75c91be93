#include "shardwise/storage/object/detail/s3_location.h"

#include <fmt/format.h>

#include <algorithm>

#include "shardwise/shard/text.h"
#include "shardwise/storage/object/detail/endpoint.h"
#include "shardwise/storage/utf8.h"

namespace shardwise::detail {
namespace {

constexpr std::string_view kS3Scheme = "s3://";
constexpr std::size_t kMostUrlBytes = 4096, kMostPrefixBytes = 900;  // of a key's 1,024

[[noreturn]] void refuse_url(std::string_view url, std::string_view found,
                             std::string_view needed) {
  throw Error(ErrorCode::invalid_argument,
              fmt::format("read the URL {}: found {}, needed {}", shown(url), found, needed));
}

bool is_bucket_name(std::string_view name) {
  const auto is_plain = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); };
  return name.size() >= 3 && name.size() <= 63 && is_plain(name.front()) && is_plain(name.back()) &&
         name.find("..") == name.npos &&
         std::ranges::all_of(name, [&](char c) { return is_plain(c) || c == '-' || c == '.'; }) &&
         name.find_first_not_of("0123456789.") != name.npos;
}

std::string value_decoded(std::string_view value, std::string_view url) {
  std::string text;
  for (std::size_t i = 0; i < value.size(); ++i) {
    if (value[i] != '%') {
      text += value[i];
      continue;
    }
    constexpr std::string_view kDigits = "0123456789ABCDEF0123456789abcdef";
    const std::size_t high = i + 2 < value.size() ? kDigits.find(value[i + 1]) : kDigits.npos;
    const std::size_t low = i + 2 < value.size() ? kDigits.find(value[i + 2]) : kDigits.npos;
    if (high == kDigits.npos || low == kDigits.npos) refuse_url(url, "a lone %", "%XX");
    text += static_cast<char>((high % 16) * 16 + low % 16);
    i += 2;
  }
  return text;
}

void set_parameter(S3Location& location, std::string_view name, std::string value,
                   std::string_view url) {
  if (name == "endpoint") {
    parse_endpoint(value);  // throws
    location.endpoint = std::move(value);
  } else if (name == "region") {
    if (!is_region(value)) refuse_url(url, "region " + shown(value), "a-z, 0-9 and -");
    location.region = std::move(value);
  } else if (name == "style") {
    if (value != "path" && value != "virtual") {
      refuse_url(url, "style " + shown(value), "path or virtual");
    }
    location.style = value == "path" ? BucketStyle::path : BucketStyle::virtual_host;
  } else {
    refuse_url(url, "the parameter " + shown(name), "endpoint, region or style");
  }
}

}  // namespace

std::string S3Location::to_string() const {
  return fmt::format("s3://{}{}{}", bucket, prefix.empty() ? "" : "/", prefix);
}

bool is_url(std::string_view text) {
  const std::size_t end = text.find("://");
  return end != text.npos && end > 0 && std::ranges::all_of(text.substr(0, end), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '+' || c == '.' ||
                  c == '-';
         });
}

S3Location parse_s3_location(std::string_view url) {
  if (url.size() > kMostUrlBytes) {
    refuse_url(url, fmt::format("{} bytes", url.size()), fmt::format("at most {}", kMostUrlBytes));
  }
  if (!url.starts_with(kS3Scheme)) {
    const std::size_t end = url.find("://");
    refuse_url(url, end == url.npos ? "no scheme" : "the scheme " + shown(url.substr(0, end)),
               "s3://BUCKET/PREFIX");
  }
  const std::string_view rest = url.substr(kS3Scheme.size());
  const std::string_view place = rest.substr(0, rest.find('?'));
  S3Location location;
  location.bucket = place.substr(0, place.find('/'));
  if (location.bucket.empty()) refuse_url(url, "no bucket", "s3://BUCKET/PREFIX");
  if (!is_bucket_name(location.bucket)) {
    refuse_url(url, "the bucket " + shown(location.bucket),
               "3 to 63 of a-z, 0-9, - and single dots, letters or digits at both ends");
  }
  if (place.size() > location.bucket.size())
    location.prefix = place.substr(location.bucket.size() + 1);
  while (location.prefix.ends_with('/')) location.prefix.pop_back();
  if (location.prefix.find('\0') != std::string::npos || !is_utf8(location.prefix) ||
      location.prefix.size() > kMostPrefixBytes) {
    refuse_url(url, fmt::format("a prefix of {} bytes", location.prefix.size()),
               fmt::format("at most {} bytes of UTF-8 without NUL", kMostPrefixBytes));
  }
  if (rest.size() == place.size()) return location;
  std::vector<std::string_view> names;
  for (const std::string_view parameter : split(rest.substr(place.size() + 1), '&')) {
    const std::string_view name = parameter.substr(0, parameter.find('='));
    if (std::ranges::find(names, name) != names.end()) {
      refuse_url(url, "twice the parameter " + shown(name), "it once");
    }
    names.push_back(name);
    if (name.size() == parameter.size()) {
      refuse_url(url, "the parameter " + shown(parameter), "NAME=VALUE");
    }
    set_parameter(location, name, value_decoded(parameter.substr(name.size() + 1), url), url);
  }
  return location;
}

}  // namespace shardwise::detail
