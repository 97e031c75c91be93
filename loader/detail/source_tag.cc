#include "shardwise/loader/detail/source_tag.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "shardwise/storage/hash.h"

namespace shardwise::detail {
namespace {

std::uint64_t hash_of_facts(std::span<const std::uint64_t> facts) {
  const auto bytes = std::as_bytes(facts);
  return hash64(bytes.data(), bytes.size());
}

class SourceWithTag final : public Source, public Tagged {
 public:
  SourceWithTag(std::shared_ptr<const Source> inner, std::uint64_t tag)
      : inner_(std::move(inner)), tag_(tag) {}

  std::uint64_t tag() const override { return tag_; }
  std::uint64_t fingerprint() const override {
    return tagged_fingerprint(inner_->fingerprint(), tag_);
  }

  std::int64_t size() const override { return inner_->size(); }
  std::span<const Field> fields() const override { return inner_->fields(); }
  void read(const Sample& sample, std::span<const FieldBox> boxes) const override {
    inner_->read(sample, boxes);
  }
  void will_read(const Sample& sample) const override { inner_->will_read(sample); }
  bool reads_together() const override { return inner_->reads_together(); }
  std::int64_t length(const Sample& sample, std::size_t field) const override {
    return inner_->length(sample, field);
  }
  bool changes_with_epoch() const override { return inner_->changes_with_epoch(); }
  std::string describe(std::int64_t samples) const override { return inner_->describe(samples); }

 private:
  const std::shared_ptr<const Source> inner_;
  const std::uint64_t tag_;
};

}  // namespace

std::uint64_t tag_of(const Source& source) {
  const auto* const tagged = dynamic_cast<const Tagged*>(&source);
  return tagged != nullptr ? tagged->tag() : 0;
}

std::uint64_t tag_of(std::span<const std::shared_ptr<const Source>> sources) {
  std::vector<std::uint64_t> tags;
  tags.reserve(sources.size());
  for (const auto& source : sources) tags.push_back(tag_of(*source));
  const bool has_any = std::ranges::any_of(tags, [](std::uint64_t tag) { return tag != 0; });
  return has_any ? hash_of_facts(tags) : 0;
}

std::uint64_t tagged_fingerprint(std::uint64_t fingerprint, std::uint64_t tag) {
  return tag == 0 ? fingerprint : hash_of_facts(std::array{fingerprint, tag});
}

std::shared_ptr<const Source> with_tag(std::shared_ptr<const Source> source, std::uint64_t tag) {
  if (tag == 0) return source;
  return std::make_shared<SourceWithTag>(std::move(source), tag);
}

}  // namespace shardwise::detail
