#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "shardwise/loader/source.h"

namespace shardwise::detail {

/// A source that may read files at URLs.
class Tagged {
 public:
  virtual ~Tagged() = default;

  /// Made of the ETags of its files; 0 if all of them are local.
  virtual std::uint64_t tag() const = 0;
};

/// The source's tag; 0 if it has none.
std::uint64_t tag_of(const Source& source);

/// One tag for sources in their order; 0 if none has one.
std::uint64_t tag_of(std::span<const std::shared_ptr<const Source>> sources);

/// A fingerprint that also covers a tag, unless this is 0.
std::uint64_t tagged_fingerprint(std::uint64_t fingerprint, std::uint64_t tag);

/// The source with a tag, which its fingerprint then covers; itself if the tag is 0.
std::shared_ptr<const Source> with_tag(std::shared_ptr<const Source> source, std::uint64_t tag);

}  // namespace shardwise::detail
