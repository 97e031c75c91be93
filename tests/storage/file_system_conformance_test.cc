// Every FileSystem keeps the contract of storage/file.h. A new implementation gets a line in
// kImplementations.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "shardwise/shard/error.h"
#include "shardwise/storage/file.h"
#include "shardwise/storage/forwarding_file_system.h"
#include "shardwise/storage/rate_limit.h"
#include "testing/faulty_file_system.h"
#include "testing/hooked_file_system.h"
#include "testing/journal_file_system.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using FilePath = std::filesystem::path;
using Contents = std::vector<std::byte>;

struct Implementation {
  std::string name;
  std::function<std::shared_ptr<FileSystem>(const FilePath& folder)> make;
};

void PrintTo(const Implementation& implementation, std::ostream* out) {
  *out << implementation.name;
}

const Implementation kImplementations[] = {
    {"Posix", [](const FilePath&) { return posix_file_system(); }},
    {"Forwarding", [](const FilePath&) { return std::make_shared<ForwardingFileSystem>(); }},
    {"RateLimited",
     [](const FilePath&) {
       return rate_limited(posix_file_system(),
                           std::make_shared<RateLimiter>(std::int64_t{1} << 40));
     }},
    {"Faulty",
     [](const FilePath&) {
       auto files = std::make_shared<FaultyFileSystem>(0, Fault::io);
       files->exchange_in_one_step();
       return files;
     }},
    {"Hooked",
     [](const FilePath&) {
       return std::make_shared<HookedFileSystem>(
           [](std::string_view, const FilePath&) {},
           [](const FilePath&, std::uint64_t, std::size_t) {});
     }},
    {"Journal", [](const FilePath& folder) { return std::make_shared<JournalFileSystem>(folder); }},
};

std::string name_of(const testing::TestParamInfo<Implementation>& implementation) {
  return implementation.param.name;
}

/// The code of the Error that `body` throws; nothing if it throws none.
std::optional<ErrorCode> outcome_of(const std::function<void()>& body) {
  try {
    body();
    return {};
  } catch (const Error& e) {
    return e.code();
  }
}

Contents read_all(File& file) {
  Contents bytes(static_cast<std::size_t>(file.size()));
  file.read_at(0, bytes.data(), bytes.size());
  return bytes;
}

Contents random_bytes(std::mt19937& random, std::size_t size) {
  Contents bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

class FileSystemConformance : public testing::TestWithParam<Implementation> {
 protected:
  void write(const FilePath& path, const Contents& bytes) const {
    const auto file = files_->create(path, Caching::cached);
    file->write_at(0, bytes.data(), bytes.size());
    file->close();
  }
  Contents read(const FilePath& path) const { return read_all(*files_->open(path)); }

  const TempDir dir_;
  const std::shared_ptr<FileSystem> files_ = GetParam().make(dir_.path());
};

/// Names and contents as the contract says, and the answer that each operation has to give. A null
/// content is a directory. Names of one file share its contents.
class TreeModel {
 public:
  using Codes = std::vector<std::optional<ErrorCode>>;

  const std::map<std::string, std::shared_ptr<Contents>>& entries() const { return entries_; }
  bool has(const std::string& path) const { return entries_.contains(path); }
  bool is_file(const std::string& path) const { return has(path) && entries_.at(path); }
  bool is_folder(const std::string& path) const { return has(path) && !entries_.at(path); }
  std::shared_ptr<Contents> contents(const std::string& path) const { return entries_.at(path); }
  long names_of(const std::string& path) const {
    return std::ranges::count(entries_, contents(path), [](const auto& e) { return e.second; });
  }
  std::vector<std::string> names_in(const std::string& folder) const {
    std::vector<std::string> names;
    for (const auto& [path, bytes] : entries_) {
      if (parent_of(path) == folder) names.push_back(FilePath(path).filename().string());
    }
    return names;
  }

  /// The outcomes of making a name: nothing if it can be made.
  Codes to_make(const std::string& path) const {
    const std::string parent = parent_of(path);
    if (!parent.empty() && !is_folder(parent)) {
      return {missing(path)};
    }
    if (has(path)) return {ErrorCode::already_exists};
    return {std::nullopt};
  }
  /// The outcomes of looking for a name that must be there.
  Codes to_find(const std::string& path) const {
    if (has(path)) return {std::nullopt};
    return {missing(path)};
  }
  void set(const std::string& path, std::shared_ptr<Contents> bytes) {
    entries_[path] = std::move(bytes);
  }
  void remove(const std::string& path) { entries_.erase(path); }
  /// With all that is below it.
  void rename(const std::string& from, const std::string& to) {
    std::map<std::string, std::shared_ptr<Contents>> moved;
    for (const auto& [path, bytes] : entries_) {
      const bool is_moved = path == from || path.starts_with(from + "/");
      moved[is_moved ? to + path.substr(from.size()) : path] = bytes;
    }
    entries_ = std::move(moved);
  }

  static std::string parent_of(const std::string& path) {
    return FilePath(path).parent_path().string();
  }

 private:
  /// A file on the way to the path is another error than nothing.
  ErrorCode missing(const std::string& path) const {
    for (std::string above = parent_of(path); !above.empty(); above = parent_of(above)) {
      if (is_file(above)) return ErrorCode::io;
    }
    return ErrorCode::not_found;
  }

  std::map<std::string, std::shared_ptr<Contents>> entries_;
};

// Thousands of operations in any order, right and wrong ones, get the model's answers, and leave
// its tree after each.
TEST_P(FileSystemConformance, AnswersAndHoldsWhatTheContractSays) {
  const std::vector<std::string> paths{"a", "b", "d", "d/a", "d/b", "e", "e/a", "e/f", "e/f/a"};
  std::mt19937 random(20261129);
  TreeModel model;
  const auto any = [&] { return paths[random() % paths.size()]; };
  const auto at = [&](const std::string& path) { return path.empty() ? dir_.path() : dir_ / path; };
  const auto expect = [](TreeModel::Codes codes, const std::function<void()>& body) {
    const std::optional<ErrorCode> outcome = outcome_of(body);
    EXPECT_THAT(codes, testing::Contains(outcome));
    return !outcome.has_value();
  };
  const auto both = [](TreeModel::Codes a, const TreeModel::Codes& b) {
    if (!a.front()) return b;
    if (b.front()) a.push_back(b.front());
    return a;
  };
  for (int i = 0; i < 1500 && !HasFailure(); ++i) {
    const std::string path = any(), other = any();
    const int operation = static_cast<int>(random() % 10);
    SCOPED_TRACE(testing::Message()
                 << i << ": operation " << operation << " on " << path << ", " << other);
    const bool is_inside = other.starts_with(path + "/") || path.starts_with(other + "/");
    switch (operation) {
      case 0: {
        const Contents bytes = random_bytes(random, random() % 5000);
        const auto caching = random() % 2 == 0 ? Caching::cached : Caching::direct;
        if (expect(model.to_make(path), [&] {
              const auto file = files_->create(at(path), caching);
              EXPECT_EQ(file->size(), 0u);
              file->write_at(0, bytes.data(), bytes.size());
              if (random() % 2 == 0) file->sync();
              file->close();
            })) {
          model.set(path, std::make_shared<Contents>(bytes));
        }
        break;
      }
      case 1:
        if (expect(model.to_make(path), [&] { files_->make_directory(at(path)); })) {
          model.set(path, nullptr);
        }
        break;
      case 2: {
        if (path == other || is_inside) break;
        if (expect(both(model.to_find(path), model.to_make(other)),
                   [&] { files_->rename(at(path), at(other)); })) {
          model.rename(path, other);
        }
        break;
      }
      case 3: {
        if (model.is_folder(path) || path == other || is_inside) break;
        TreeModel::Codes codes = both(model.to_find(path), model.to_make(other));
        codes.push_back(ErrorCode::unsupported);
        if (expect(codes, [&] { files_->link(at(path), at(other)); })) {
          model.set(other, model.contents(path));
        }
        break;
      }
      case 4: {
        TreeModel::Codes codes{std::nullopt};
        if (model.is_folder(path) && !model.names_in(path).empty()) {
          codes = {ErrorCode::already_exists};
        } else if (!model.has(path)) {
          codes = {std::nullopt, model.to_find(path).front()};
          if (codes.back() == ErrorCode::not_found) codes.pop_back();  // that is no error
        }
        if (expect(codes, [&] { files_->remove(at(path)); })) model.remove(path);
        break;
      }
      case 5: {
        TreeModel::Codes codes = both(model.to_find(path), model.to_find(other));
        codes.push_back(ErrorCode::unsupported);
        if (path == other || is_inside) break;
        if (expect(codes, [&] { files_->exchange(at(path), at(other)); })) {
          model.rename(path, "swap");
          model.rename(other, path);
          model.rename("swap", other);
        }
        break;
      }
      case 6: {
        TreeModel::Codes codes = model.to_find(path);
        if (model.is_folder(path)) codes = {ErrorCode::corrupt};
        codes.push_back(ErrorCode::unsupported);
        std::unique_ptr<File> file;
        if (!expect(codes, [&] { file = files_->open_for_update(at(path)); })) break;
        Contents& bytes = *model.contents(path);
        EXPECT_EQ(read_all(*file), bytes);
        const Contents part = random_bytes(random, random() % 300);
        const std::size_t offset = random() % 3000;
        file->write_at(offset, part.data(), part.size());
        if (!part.empty() && bytes.size() < offset + part.size())
          bytes.resize(offset + part.size());
        std::ranges::copy(
            part, bytes.begin() + static_cast<std::ptrdiff_t>(std::min(offset, bytes.size())));
        file->close();
        break;
      }
      case 7: {
        const std::unique_ptr<File> file = files_->reuse(at(path), Caching::cached);
        if (!file) break;
        EXPECT_TRUE(model.is_file(path) && model.names_of(path) == 1);
        if (HasFailure()) break;
        Contents& bytes = *model.contents(path);
        std::ranges::fill(bytes, std::byte{0});
        EXPECT_EQ(read_all(*file), bytes);
        file->close();
        break;
      }
      case 8: {
        TreeModel::Codes codes = model.to_find(path);
        if (model.is_file(path)) codes = {ErrorCode::io, ErrorCode::not_found};
        expect(codes, [&] { files_->sync_directory(at(path)); });
        expect(codes, [&] {
          EXPECT_THAT(files_->list(at(path)), testing::ElementsAreArray(model.names_in(path)));
        });
        break;
      }
      default: {
        TreeModel::Codes codes = model.to_find(path);
        if (model.is_folder(path)) codes = {ErrorCode::corrupt};
        std::unique_ptr<File> file;
        if (!expect(codes, [&] { file = files_->open(at(path)); })) break;
        const Contents& bytes = *model.contents(path);
        EXPECT_EQ(read_all(*file), bytes);
        const std::uint64_t data = file->next_data(0);
        EXPECT_LE(data, bytes.size());
        EXPECT_TRUE(std::all_of(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(data),
                                [](std::byte byte) { return byte == std::byte{0}; }));
        std::byte past{};
        EXPECT_EQ(outcome_of([&] { file->read_at(bytes.size(), &past, 1); }), ErrorCode::corrupt);
        break;
      }
    }
    for (const std::string folder : {"", "d", "e", "e/f"}) {
      if (!folder.empty() && !model.is_folder(folder)) continue;
      EXPECT_THAT(files_->list(at(folder)), testing::ElementsAreArray(model.names_in(folder)));
    }
  }
  for (const auto& [path, bytes] : model.entries()) {
    if (bytes) {
      EXPECT_EQ(read(at(path)), *bytes) << path;
    }
  }
}

TEST_P(FileSystemConformance, ADirectoryOpensItsFilesAndSaysWhetherItIsInPlace) {
  const Contents bytes(3, std::byte{7});
  files_->make_directory(dir_ / "d");
  write(dir_ / "d/a", bytes);
  const auto directory = files_->open_directory(dir_ / "d");
  EXPECT_EQ(read_all(*directory->open("a")), bytes);
  EXPECT_EQ(outcome_of([&] { directory->open("b"); }), ErrorCode::not_found);
  EXPECT_TRUE(directory->is_in_place());
  EXPECT_EQ(outcome_of([&] { files_->open_directory(dir_ / "no"); }), ErrorCode::not_found);
  files_->rename(dir_ / "d", dir_ / "moved");
  EXPECT_FALSE(directory->is_in_place());
}

TEST_P(FileSystemConformance, RunsAreOneWriteAfterTheOther) {
  std::mt19937 random(3);
  const Contents first = random_bytes(random, 4096), second = random_bytes(random, 777);
  const WriteRun runs[] = {
      {first.data(), first.size()}, {second.data(), 0}, {second.data(), second.size()}};
  for (const Caching caching : {Caching::cached, Caching::direct}) {
    const FilePath path = dir_ / (caching == Caching::direct ? "direct" : "cached");
    const auto file = files_->create(path, caching);
    file->write_runs(5, runs);
    file->close();
    Contents expected(5);
    expected.insert(expected.end(), first.begin(), first.end());
    expected.insert(expected.end(), second.begin(), second.end());
    EXPECT_EQ(read(path), expected);
  }
}

TEST_P(FileSystemConformance, AFileGrowsWithZerosAndShrinks) {
  const auto file = files_->create(dir_ / "f", Caching::cached);
  const Contents bytes(10, std::byte{1});
  file->write_at(0, bytes.data(), bytes.size());
  file->resize(4);
  file->resize(8);
  file->sync();
  file->close();
  EXPECT_THAT(read(dir_ / "f"),
              ElementsAre(std::byte{1}, std::byte{1}, std::byte{1}, std::byte{1}, std::byte{0},
                          std::byte{0}, std::byte{0}, std::byte{0}));
}

// An implementation may know no seals: then a file counts as sealed.
TEST_P(FileSystemConformance, AFileThatWasSealedAndLeftAloneIsSealed) {
  const auto file = files_->create(dir_ / "f", Caching::cached);
  const std::byte byte{1};
  file->write_at(0, &byte, 1);
  file->sync();
  file->seal();
  file->close();
  EXPECT_TRUE(files_->open(dir_ / "f")->is_sealed());
}

TEST_P(FileSystemConformance, KnowsSomeRoomOfItsFolder) {
  EXPECT_GT(files_->free_bytes(dir_.path()), 0u);
  EXPECT_THAT(files_->list(dir_.path()), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(All, FileSystemConformance, testing::ValuesIn(kImplementations), name_of);

}  // namespace
}  // namespace shardwise
