#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "testing/journal_file_system.h"

namespace shardwise {

/// The content of a folder: the bytes of each file by its path; null for a directory.
using DiskState = std::map<std::string, std::shared_ptr<const std::vector<std::byte>>>;

/// Makes it a folder's content. Requires an empty folder.
void write_state(const DiskState& state, const std::filesystem::path& folder);

/// Equal for equal states only, as far as a 128-bit hash can tell.
std::string fingerprint(const DiskState& state);

/// States of the disk that are possible after the power went, at any instant of a journal.
///
/// The rules are the promises of POSIX and Linux alone; ext4, xfs and btrfs keep more order.
///
/// - Nothing that was synced is lost: that is what fsync is for.
/// - Bytes. Each block of 4 KiB of a file is, on its own, as it was at any instant since the file's
///   last fsync: the page cache writes whole pages out at any time, in any order. A block that was
///   never written holds zeros: file systems do not show what others had left there. (If one did,
///   hashes would find it as they find zeros.)
/// - Size. On its own any of the sizes since the last fsync: it is metadata, and goes to the disk
///   apart from the bytes.
/// - Names. A file or directory has, on its own, any of the names it had since the last fsync of
///   its directory, "none" being one before it was made and after it was removed.
///   So creating, renaming and removing are each kept or dropped independently of one another, in
///   one directory and in several; a rename is atomic, the old name or the new, never both nor
///   neither: rename(2) promises that. After one into another directory it is settled when that
///   one is synced. A file's fsync does not bring its name to the disk, nor a
///   directory's fsync the directory's own name: fsync(2) says so.
/// - A file with a second name has each of the two, or not, on its own, by the same rules: linking
///   is making a name. Its bytes are one: state() asks that they are on the disk when it is linked.
/// - The content of a directory that has no name is gone.
///
/// Giving a name twice before its directory was synced is not modelled: the library does not, and
/// state() throws std::logic_error.
///
/// Thread-compatible.
class CrashModel {
 public:
  /// Picks one of a number of states; 0 is the newest. Not asked if there is only one.
  using Choose = std::function<std::size_t(std::size_t)>;

  /// Begins with the content of `folder`; all of it is on the disk.
  explicit CrashModel(const std::filesystem::path& folder);

  /// The next instant.
  void apply(const Change& change);

  /// The state that these choices lead to; legal whatever they are.
  DiskState state(const Choose& choose) const;

  /// Visits every state there can be, each once for each way to come by it; returns their number.
  std::size_t for_each_state(const std::function<void(const DiskState&)>& visit) const;

  /// Any state. States differ in how many writes without sync are kept.
  DiskState random_state(std::mt19937_64& random) const;

 private:
  using Bytes = std::shared_ptr<const std::vector<std::byte>>;

  // A file or directory. Histories begin with the state on the disk and end with the current one.
  struct Place {
    std::size_t parent;
    std::string name;  // "": none
    bool operator==(const Place&) const = default;
  };
  struct Node {
    std::vector<Place> places;
    std::vector<Bytes> contents = {};  // none: a directory
  };

  void add_folder(const std::filesystem::path& folder, std::size_t number);
  std::size_t find(const std::string& path) const;
  void add(const std::string& path, bool is_file);
  void rename(const Change& change);
  void link(const Change& change);
  static Bytes torn(const std::vector<Bytes>& contents, const Choose& choose);

  std::vector<Node> nodes_;         // first the folder itself
  std::vector<std::size_t> files_;  // their nodes, in the order of opening
};

}  // namespace shardwise
