#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shardwise/storage/object/object_client.h"

namespace shardwise {

/// Checks that hold for every ObjectClient, below a prefix of keys that nobody else uses: ends in a
/// slash. Statuses, ETags, ranges, conditions, listings, races and multipart uploads.
class ClientConformance {
 public:
  ClientConformance(ObjectClient& client, std::string prefix)
      : client_(client), prefix_(std::move(prefix)) {}

  void check_all();
  void check_whole_objects();
  void check_ranges();
  void check_conditions();
  /// One of several writers wins, by both conditions; its bytes are there.
  void check_races();
  void check_listings();
  /// More keys than a page holds, a page at a time: each once.
  void check_pages(int keys);
  /// Keys of strange characters: each is its own object, and is listed as it was put.
  void check_keys();
  void check_uploads();

 private:
  static std::span<const std::byte> bytes(std::string_view text);
  static std::string letters(std::size_t size);
  static std::string name_of(RequestStatus status);
  std::string put(const std::string& key, std::string_view text);
  RequestResult head_of(const std::string& key);
  /// The bytes, or the name of the status or the error.
  std::string range_of(const std::string& key, std::uint64_t offset, std::size_t size,
                       const std::string& if_match);
  std::string text_of(const std::string& key);
  /// Names of objects and prefixes below, sorted; all of one page.
  std::vector<std::string> names_of(const std::string& prefix, const std::string& delimiter,
                                    std::string below = {});

  ObjectClient& client_;
  const std::string prefix_;
};

}  // namespace shardwise
