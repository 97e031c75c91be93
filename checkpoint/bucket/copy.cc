#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shardwise/bucket/bucket.h"
#include "shardwise/bucket/detail/bucket_root.h"
#include "shardwise/checkpoint/detail/format/manifest.h"
#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"
#include "shardwise/checkpoint/detail/root/attempt.h"
#include "shardwise/checkpoint/detail/root/names.h"
#include "shardwise/checkpoint/detail/root/root.h"
#include "shardwise/checkpoint/staged_output.h"
#include "shardwise/checkpoint/verify.h"
#include "shardwise/storage/forwarding_file_system.h"
#include "shardwise/storage/hash.h"
#include "shardwise/storage/object/bucket_path.h"
#include "shardwise/storage/object/detail/parallel_requests.h"

namespace shardwise {
namespace {

namespace fs = std::filesystem;
using bucket_detail::BucketRoot;
using bucket_detail::Generation;
using detail::StepName;

/// Bytes that are read as a file.
class TextFile final : public File {
 public:
  explicit TextFile(std::string text) : text_(std::move(text)) {}

  void read_at(std::uint64_t offset, std::byte* data, std::size_t size) override {
    if (offset > text_.size() || size > text_.size() - offset) {
      throw Error(ErrorCode::corrupt, "read of a manifest: it ends before that");
    }
    std::memcpy(data, text_.data() + offset, size);
  }
  std::uint64_t size() override { return text_.size(); }
  void write_at(std::uint64_t, const std::byte*, std::size_t) override { refuse(); }
  void resize(std::uint64_t) override { refuse(); }
  void sync() override {}
  void close() override {}

 private:
  [[noreturn]] static void refuse() {
    throw Error(ErrorCode::unsupported, "write to a manifest: it is only read");
  }

  const std::string text_;
};

/// The files of an attempt in a bucket, as if its manifest were there.
class WithManifest final : public ForwardingFileSystem {
 public:
  WithManifest(std::shared_ptr<FileSystem> real, std::string text)
      : ForwardingFileSystem(std::move(real)), text_(std::move(text)) {}

  std::unique_ptr<File> open(const fs::path& path) override {
    if (path.filename() != detail::kManifestName) return real().open(path);
    return std::make_unique<TextFile>(text_);
  }
  std::vector<std::string> list(const fs::path& path) override {
    std::vector<std::string> names = real().list(path);
    names.emplace_back(detail::kManifestName);
    std::ranges::sort(names);
    return names;
  }

 protected:
  std::unique_ptr<File> open_in(Directory& real, const fs::path& path) override {
    if (path.filename() != detail::kManifestName) return real.open(path.filename().string());
    return std::make_unique<TextFile>(text_);
  }

 private:
  const std::string text_;
};

/// A step that is copied.
struct Source {
  std::shared_ptr<FileSystem> files;
  fs::path directory;
  StepName name = {};
  std::string manifest = {};
  std::map<std::string, std::uint64_t> sizes = {};  ///< of all files but the manifest
  std::size_t bytes = 0;                            ///< of these
};

Source open_source(const fs::path& from) {
  Source source{.files = file_system_of(from), .directory = from};
  const detail::OpenDirectory opened = detail::open_directory(*source.files, from);
  source.directory = opened.path;
  source.manifest = detail::read_manifest_text(opened);
  const detail::Manifest manifest = detail::read_manifest(opened);
  if (manifest.step == detail::kNoStep) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("copy {}: found a checkpoint without a number, needed a step, such as "
                            "step-00000100",
                            from.string()));
  }
  source.name.step = manifest.step;
  for (const std::string& name : source.files->list(source.directory)) {
    if (name == detail::kManifestName || detail::is_repair_name(name)) continue;
    if (!name.ends_with(".h5") && !name.ends_with(detail::kParitySuffix)) {
      throw Error(ErrorCode::corrupt,
                  fmt::format("copy {}: found {:?} in it, needed the files of a checkpoint alone",
                              from.string(), name));
    }
    const std::uint64_t size = opened.directory->open(name)->size();
    source.sizes[name] = size;
    source.bytes += static_cast<std::size_t>(size);
  }
  return source;
}

/// One copy of a step. Thread-compatible; its requests count bytes under a lock.
class Copy {
 public:
  Copy(const fs::path& from, const CopyOptions& options)
      : source_(open_source(from)), options_(options) {
    report_.files = static_cast<std::int64_t>(source_.sizes.size()) + 1;
    report_.bytes = source_.bytes + source_.manifest.size();
  }

  CopyReport into_bucket(const fs::path& to);
  CopyReport into_folder(const fs::path& to);

 private:
  bool is_source(const std::optional<ObjectStore::Content>& manifest) const;
  void put_files(ObjectStore& store, const std::string& prefix,
                 const std::map<std::string, std::uint64_t>& present);
  void copy_file(FileSystem& files, const fs::path& directory, const std::string& name);
  VerifyReport check(const fs::path& directory, std::shared_ptr<FileSystem> files);
  CopyReport is_there();
  [[noreturn]] void refuse_other() const;
  [[noreturn]] void fail(const fs::path& directory, const VerifyReport& report) const;
  void count(std::size_t bytes);

  const Source source_;
  const CopyOptions& options_;
  CopyReport report_;
  std::mutex mutex_;  // guards the next one
  std::size_t done_ = 0;
};

void Copy::count(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  done_ += bytes;
  if (options_.progress) options_.progress({done_, 2 * source_.bytes});
}

VerifyReport Copy::check(const fs::path& directory, std::shared_ptr<FileSystem> files) {
  ReadOptions options{.pin = false, .file_system = std::move(files)};
  if (options_.progress) {
    options.progress = [this](const Progress& progress) {
      options_.progress(
          {source_.bytes + std::min(progress.done_bytes, source_.bytes), 2 * source_.bytes});
    };
  }
  return verify_checkpoint(directory, options);
}

CopyReport Copy::is_there() {
  report_.present = report_.bytes;
  return report_;
}

void Copy::refuse_other() const {
  throw Error(ErrorCode::already_exists,
              fmt::format("copy {}: {} is there with other bytes; --replace puts a new generation "
                          "in its place",
                          source_.directory.string(), report_.directory.string()));
}

void Copy::fail(const fs::path& directory, const VerifyReport& report) const {
  const bool is_damaged = !report.damage.empty();
  const Damage& first = (is_damaged ? report.damage : report.unread).front();
  throw Error(
      is_damaged ? ErrorCode::corrupt : ErrorCode::io,
      fmt::format("copy {} to {}: the copy is not whole, and is not published: {}: {}; "
                  "`shardwise verify` says whether the source is",
                  source_.directory.string(), directory.string(), first.file, first.message));
}

bool Copy::is_source(const std::optional<ObjectStore::Content>& manifest) const {
  return manifest && manifest->info.size == source_.manifest.size() &&
         std::memcmp(manifest->bytes.data(), source_.manifest.data(), source_.manifest.size()) == 0;
}

void Copy::put_files(ObjectStore& store, const std::string& prefix,
                     const std::map<std::string, std::uint64_t>& present) {
  for (const auto& [name, size] : source_.sizes) {
    const auto there = present.find(prefix + name);
    if (there != present.end() && there->second == size) {
      report_.present += static_cast<std::size_t>(size);
      count(static_cast<std::size_t>(size));
      continue;
    }
    const std::unique_ptr<File> file = source_.files->open(source_.directory / name);
    const auto read = [&](std::uint64_t offset, std::span<std::byte> into) {
      file->read_at(offset, into.data(), into.size());
      count(into.size());
    };
    store.upload(prefix + name, size, read, options_.part_bytes, options_.requests);
  }
}

CopyReport Copy::into_bucket(const fs::path& to) {
  const BucketPlace place = open_bucket(to);
  BucketRoot root(place.store, place.key);
  root.need_conditions();
  ObjectStore& store = *place.store;
  const std::string hash = to_hex(hash128(std::string_view(source_.manifest)));
  std::optional<StepName> name;
  std::vector<StepName> older;
  for (const Generation& one : root.generations(source_.name.step)) {
    if (one.state == Generation::State::committed) {
      older.push_back(one.name);
      continue;
    }
    const auto claim = root.claim_of(one);
    if (one.state == Generation::State::attempt && claim && claim->manifest_hash == hash) {
      name = one.name;  // of a copy that was killed, or goes on: it puts the same bytes
    }
  }
  if (!older.empty()) {  // the newest counts
    const std::string manifest = root.prefix(older.back()) + detail::kManifestName;
    report_.directory = to / to_string(older.back());
    if (is_source(store.get(manifest, source_.manifest.size()))) return is_there();
    if (!options_.replace) refuse_other();
  }
  if (!name) name = root.claim(source_.name.step, {detail::new_id(), hash, options_.claim_seconds});
  report_.directory = to / to_string(*name);
  const std::string prefix = root.prefix(*name);
  std::map<std::string, std::uint64_t> present;
  for (const ObjectInfo& object : store.list(prefix).objects) present[object.key] = object.size;
  put_files(store, prefix, present);
  const fs::path directory = place.base + "/" + prefix.substr(0, prefix.size() - 1);
  const auto files = std::make_shared<WithManifest>(file_system_of(directory), source_.manifest);
  VerifyReport report = check(directory, files);
  if (!report.damage.empty() && report_.present > 0) {  // of the earlier copy, perhaps
    report_.present = done_ = 0;
    put_files(store, prefix, {});
    report = check(directory, files);
  }
  if (!report.ok()) fail(report_.directory, report);
  root.commit(*name, source_.manifest);
  for (const StepName& one : older) root.remove(one);
  return report_;
}

void Copy::copy_file(FileSystem& files, const fs::path& directory, const std::string& name) {
  const std::uint64_t size = source_.sizes.at(name), part = options_.part_bytes;
  const std::unique_ptr<File> from = source_.files->open(source_.directory / name);
  const std::unique_ptr<File> to = files.create(directory / name, Caching::cached);
  to->resize(size);
  detail::request_all(static_cast<std::size_t>((size + part - 1) / part), options_.requests,
                      [&](std::size_t i) {
                        thread_local std::vector<std::byte> bytes;
                        const std::uint64_t begin = i * part;
                        bytes.resize(static_cast<std::size_t>(std::min(part, size - begin)));
                        from->read_at(begin, bytes.data(), bytes.size());
                        to->write_at(begin, bytes.data(), bytes.size());
                        count(bytes.size());
                      });
  to->sync();
  to->close();
}

CopyReport Copy::into_folder(const fs::path& to) {
  const std::shared_ptr<FileSystem> files = posix_file_system();
  detail::make_root(*files, to);
  StepName name = source_.name;
  std::optional<StepName> newest;
  for (const StepName& there : detail::committed_names(*files, to)) {
    if (there.step == name.step) newest = there;
  }
  if (newest) {
    report_.directory = to / to_string(*newest);
    try {
      const auto opened = detail::open_directory(*files, report_.directory);
      if (detail::read_manifest_text(opened) == source_.manifest) return is_there();
    } catch (const Error& error) {
      if (error.code() != ErrorCode::not_found) throw;  // it is no checkpoint
    }
    if (!options_.replace) refuse_other();
    name.digits = newest->digits;
    name.generation = newest->generation + 1;
  }
  report_.directory = to / to_string(name);
  StagedOutput output(*files, report_.directory);
  files->make_directory(output.place());
  for (const auto& [file, size] : source_.sizes) copy_file(*files, output.place(), file);
  detail::write_whole_file(*files, output.place() / detail::kManifestName,
                           std::as_bytes(std::span(source_.manifest)));
  files->sync_directory(output.place());
  const VerifyReport report = check(output.place(), files);
  if (!report.ok()) fail(report_.directory, report);
  output.publish(false);
  return report_;
}

}  // namespace

CopyReport copy_step(const fs::path& from, const fs::path& to, const CopyOptions& options) {
  Copy copy(from, options);
  return in_bucket(to) ? copy.into_bucket(to) : copy.into_folder(to);
}

bool remove_step(const fs::path& root, std::int64_t step) {
  const std::shared_ptr<BucketRoot> bucket = bucket_detail::open_bucket_root(root);
  bool is_removed = false;
  for (const Generation& one : bucket->generations(step)) {
    if (one.state == Generation::State::committed && bucket->remove(one.name)) is_removed = true;
  }
  return is_removed;
}

GarbageReport collect_bucket_garbage(const fs::path& root) {
  return bucket_detail::open_bucket_root(root)->collect_garbage();
}

}  // namespace shardwise
