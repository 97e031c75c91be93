#include "shardwise/bucket/detail/bucket_root.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "shardwise/checkpoint/detail/format/manifest.h"
#include "shardwise/checkpoint/detail/format/tombstone.h"
#include "shardwise/checkpoint/detail/root/names.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/object/bucket_path.h"
#include "shardwise/storage/object/detail/parallel_requests.h"

namespace shardwise::bucket_detail {
namespace {

using detail::StepName;

constexpr std::int64_t kUnclaimedSeconds = 86'400;
constexpr int kMostTries = 100;
constexpr std::string_view kRootMark = ".shardwise-root";

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

std::string_view text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

BucketRoot::BucketRoot(std::shared_ptr<ObjectStore> store, const std::string& prefix, int requests)
    : store_(std::move(store)), prefix_(prefix.empty() ? "" : prefix + "/"), requests_(requests) {}

std::string BucketRoot::prefix(const StepName& name) const {
  return prefix_ + to_string(name) + "/";
}

std::string BucketRoot::manifest_key(const StepName& name) const {
  return prefix(name) + detail::kManifestName;
}

std::string BucketRoot::claim_key(const StepName& name) const { return prefix_ + claim_name(name); }

void BucketRoot::need_conditions() {
  const std::string key = prefix_ + std::string(kRootMark);
  if (store_->head(key)) return;
  // A store that ignores conditions takes both puts.
  const std::string one = detail::new_id() + "\n", other = detail::new_id() + "\n";
  store_->put_if(key, bytes_of(one), {.if_absent = true});
  const bool takes_second =
      store_->put_if(key, bytes_of(other), {.if_absent = true}) == PutOutcome::done;
  const bool takes_stale =
      store_->put_if(key, bytes_of(other), {.if_match = "\"0\""}) == PutOutcome::done;
  if (!takes_second && !takes_stale) return;
  store_->remove(key);
  throw Error(ErrorCode::unsupported,
              fmt::format("open the root {}/{}: found a store that ignores If-{}Match, needed one "
                          "that heeds it: without, a step cannot appear as a whole; keep steps in "
                          "a folder, and copy the folder",
                          store_->name(), prefix_, takes_second ? "None-" : ""));
}

Generation::State BucketRoot::state_of(const StepName& name) const {
  const auto manifest = store_->get(manifest_key(name), detail::kTombstone.size());
  if (!manifest) return Generation::State::attempt;
  return detail::is_tombstone(text_of(manifest->bytes)) ? Generation::State::removed
                                                        : Generation::State::committed;
}

std::vector<Generation> BucketRoot::generations(std::optional<std::int64_t> step) const {
  std::map<StepName, std::optional<ObjectInfo>> found;
  const ObjectPage page = store_->list(prefix_, "/");
  for (std::string_view folder : page.prefixes) {
    folder.remove_prefix(prefix_.size());
    folder.remove_suffix(1);
    if (const auto name = detail::parse_step_name(folder)) found.try_emplace(*name);
  }
  for (const ObjectInfo& object : page.objects) {
    const auto name = parse_claim_name(std::string_view(object.key).substr(prefix_.size()));
    if (name) found[*name] = object;
  }
  std::vector<Generation> all;
  for (auto& [name, claim] : found) {
    if (!step || name.step == *step) all.push_back({name, {}, std::move(claim)});
  }
  detail::request_all(all.size(), requests_,
                      [&](std::size_t i) { all[i].state = state_of(all[i].name); });
  return all;
}

std::vector<StepName> BucketRoot::committed() const {
  std::vector<StepName> names;
  for (const Generation& one : generations()) {
    if (one.state == Generation::State::committed) names.push_back(one.name);
  }
  return names;
}

std::optional<Claim> BucketRoot::claim_of(const Generation& generation) const {
  if (!generation.claim) return std::nullopt;
  const auto content = store_->get(generation.claim->key, kMostClaimBytes);
  return content ? parse_claim(text_of(content->bytes)) : std::nullopt;
}

StepName BucketRoot::claim(std::int64_t step, const Claim& claim) {
  const std::string text = print_claim(claim);
  StepName name{.step = step};
  for (const Generation& one : generations(step)) {
    name.digits = one.name.digits;
    name.generation = std::max(name.generation, one.name.generation + 1);
  }
  for (int tries = 0; tries < kMostTries; ++tries, ++name.generation) {
    if (store_->put_if(claim_key(name), bytes_of(text), {.if_absent = true}) == PutOutcome::done) {
      return name;
    }
  }
  throw Error(ErrorCode::io, fmt::format("claim step {} of {}/{}: found {} generations that others "
                                         "have claimed",
                                         step, store_->name(), prefix_, kMostTries));
}

void BucketRoot::commit(const StepName& name, std::string_view manifest) {
  const std::string key = manifest_key(name);
  switch (store_->put_if(key, bytes_of(manifest), {.if_absent = true})) {
    case PutOutcome::done:
      break;
    case PutOutcome::lost_race:
      throw Error(ErrorCode::already_exists,
                  fmt::format("publish {}/{}: found a tombstone or another manifest, needed none: "
                              "the attempt has been collected as its claim was over",
                              store_->name(), key));
    case PutOutcome::unknown:
      throw Error(ErrorCode::io,
                  fmt::format("publish {}/{}: found no answer, so step {} may be there, whole, or "
                              "not; `shardwise ls` says which",
                              store_->name(), key, name.step));
  }
  try {
    store_->remove(claim_key(name));
  } catch (const Error&) {
    // The checkpoint is there: the next collection removes its claim.
  }
}

void BucketRoot::remove_objects(const StepName& name) {
  store_->abort_uploads(prefix(name), [](const std::string&) { return true; });
  const ObjectPage page = store_->list(prefix(name));
  detail::request_all(page.objects.size(), requests_, [&](std::size_t i) {
    if (page.objects[i].key != manifest_key(name)) store_->remove(page.objects[i].key);
  });
  store_->remove(claim_key(name));
}

// Afterwards no put of a manifest can publish it, unless that came first.
Generation::State BucketRoot::seal(const StepName& name) {
  const std::string tombstone = detail::print_tombstone(detail::new_id());
  switch (store_->put_if(manifest_key(name), bytes_of(tombstone), {.if_absent = true})) {
    case PutOutcome::done:
      return Generation::State::removed;
    case PutOutcome::unknown:
      return Generation::State::attempt;
    case PutOutcome::lost_race:
      break;
  }
  return state_of(name);
}

void BucketRoot::abandon(const StepName& name) {
  if (seal(name) == Generation::State::removed) remove_objects(name);
}

std::int64_t BucketRoot::published_seconds(const StepName& name) const {
  const std::optional<ObjectInfo> manifest = store_->head(manifest_key(name));
  return manifest ? manifest->modified : 0;
}

bool BucketRoot::remove(const StepName& name) {
  const std::string key = manifest_key(name);
  const std::string tombstone = detail::print_tombstone(detail::new_id());
  for (int tries = 0; tries < kMostTries; ++tries) {
    const auto manifest = store_->get(key, detail::kTombstone.size());
    if (!manifest) return false;
    const bool is_removed = detail::is_tombstone(text_of(manifest->bytes));
    if (!is_removed) {
      const PutOutcome outcome =
          store_->put_if(key, bytes_of(tombstone), {.if_match = manifest->info.etag});
      if (outcome == PutOutcome::lost_race) continue;  // somebody else removes it
      if (outcome == PutOutcome::unknown) {
        throw Error(ErrorCode::io, fmt::format("remove {}/{}: found no answer, so it may be there, "
                                               "whole, or be removed",
                                               store_->name(), key));
      }
    }
    remove_objects(name);
    return !is_removed;
  }
  throw Error(ErrorCode::io, fmt::format("remove {}/{}: found it changed {} times", store_->name(),
                                         key, kMostTries));
}

bool BucketRoot::is_over(const Generation& generation, std::int64_t more_seconds) const {
  const std::int64_t now = store_->date();
  if (now == 0) return false;
  if (generation.claim) {
    const std::optional<Claim> claim = claim_of(generation);
    const std::int64_t seconds = claim ? claim->seconds : kUnclaimedSeconds;
    return generation.claim->modified + seconds + more_seconds < now;
  }
  // A folder that somebody copies up by other means has no claim either.
  std::int64_t last = 0;
  for (const ObjectInfo& object : store_->list(prefix(generation.name)).objects) {
    last = std::max(last, object.modified);
  }
  return last + kUnclaimedSeconds + more_seconds < now;
}

GarbageReport BucketRoot::collect_garbage(std::int64_t more_seconds) {
  GarbageReport report;
  std::set<std::string> ended;                     // prefixes that nobody writes any more
  std::map<std::string, std::size_t> num_objects;  // by prefix
  for (const ObjectInfo& object : store_->list(prefix_).objects) {
    ++num_objects[object.key.substr(0, object.key.rfind('/') + 1)];
  }
  for (const Generation& one : generations()) {
    Generation::State state = one.state;
    const std::string name = to_string(one.name);
    if (state == Generation::State::attempt) {
      if (!is_over(one, more_seconds)) {
        report.kept.push_back(name);
        continue;
      }
      state = seal(one.name);
      if (state == Generation::State::attempt) report.kept.push_back(name);
    }
    if (state == Generation::State::attempt) continue;
    ended.insert(prefix(one.name));
    if (state == Generation::State::committed) {
      if (one.claim) store_->remove(one.claim->key);
      continue;
    }
    const bool is_sealed_now = one.state == Generation::State::attempt;
    if (!is_sealed_now && !one.claim && num_objects[prefix(one.name)] <= 1) continue;
    remove_objects(one.name);
    report.removed.push_back(name);
  }
  // A request to begin an upload that was not answered has been repeated.
  store_->abort_uploads(prefix_, [&](const std::string& key) {
    return ended.contains(key.substr(0, key.rfind('/') + 1));
  });
  return report;
}

std::shared_ptr<BucketRoot> open_bucket_root(const std::filesystem::path& root) {
  BucketPlace place = open_bucket(root);
  return std::make_shared<BucketRoot>(std::move(place.store), place.key);
}

}  // namespace shardwise::bucket_detail
