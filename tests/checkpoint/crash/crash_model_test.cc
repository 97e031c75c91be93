// The rules for the states that a power loss may leave, one after the other, by hand.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <stdexcept>
#include <unordered_set>

#include "testing/crash_states.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

using testing::ElementsAre;

std::string bytes_text(const DiskState& state, const std::string& path) {
  const std::vector<std::byte>& bytes = *state.at(path);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The text of every state of a folder that holds at most a file "a" or "b"; "-" where it is absent.
std::vector<std::string> states_of(const CrashModel& model) {
  std::vector<std::string> texts;
  model.for_each_state([&](const DiskState& state) {
    std::string text;
    for (const auto& [path, content] : state) {
      text += text.empty() ? "" : " ";
      text += path + ":" + (content ? bytes_text(state, path) : "/");
    }
    texts.push_back(text.empty() ? "-" : text);
  });
  std::sort(texts.begin(), texts.end());
  return texts;
}

std::vector<std::byte> bytes(std::string_view text) {
  const auto view = std::as_bytes(std::span(text));
  return {view.begin(), view.end()};
}

TEST(CrashModel, KeepsOrDropsWhatIsNotSynced) {
  const TempDir dir;
  CrashModel model(dir.path());
  const std::string zero(1, '\0');
  EXPECT_THAT(states_of(model), ElementsAre("-"));
  model.apply({.kind = ChangeKind::create, .path = "a"});
  EXPECT_THAT(states_of(model), ElementsAre("-", "a:"));
  model.apply({.kind = ChangeKind::write, .path = "a", .bytes = bytes("x")});
  EXPECT_THAT(states_of(model), ElementsAre("-", "a:", "a:" + zero, "a:x"));
  model.apply({.kind = ChangeKind::sync, .path = "a"});
  EXPECT_THAT(states_of(model), ElementsAre("-", "a:x")) << "the name is not synced";
  model.apply({.kind = ChangeKind::rename, .path = "a", .to = "b"});
  EXPECT_THAT(states_of(model), ElementsAre("-", "a:x", "b:x"));
  model.apply({.kind = ChangeKind::sync_directory, .path = "."});
  EXPECT_THAT(states_of(model), ElementsAre("b:x"));
  model.apply({.kind = ChangeKind::rename, .path = "b", .to = "a"});
  EXPECT_THAT(states_of(model), ElementsAre("a:x", "b:x")) << "never neither";
  model.apply({.kind = ChangeKind::remove, .path = "a"});
  EXPECT_THAT(states_of(model), ElementsAre("-", "a:x", "b:x"));
  model.apply({.kind = ChangeKind::sync_directory, .path = "."});
  EXPECT_THAT(states_of(model), ElementsAre("-"));
}

TEST(CrashModel, DirectoriesAreIndependentOfEachOther) {
  const TempDir dir;
  CrashModel model(dir.path());
  model.apply({.kind = ChangeKind::make_directory, .path = "d"});
  model.apply({.kind = ChangeKind::create, .path = "d/a"});
  EXPECT_THAT(states_of(model), ElementsAre("-", "d:/", "d:/ d/a:"));
  model.apply({.kind = ChangeKind::sync_directory, .path = "d"});
  EXPECT_THAT(states_of(model), ElementsAre("-", "d:/ d/a:")) << "its own name is its parent's";
  model.apply({.kind = ChangeKind::sync_directory, .path = "."});
  EXPECT_THAT(states_of(model), ElementsAre("d:/ d/a:"));
  model.apply({.kind = ChangeKind::rename, .path = "d", .to = "e"});
  model.apply({.kind = ChangeKind::remove, .path = "e/a"});
  EXPECT_THAT(states_of(model), ElementsAre("d:/", "d:/ d/a:", "e:/", "e:/ e/a:"));
}

TEST(CrashModel, TearsWritesAtBlocks) {
  const TempDir dir;
  const std::string old(3 * 4096, 'o'), written(2 * 4096, 'n');
  write_file(dir / "a", bytes(old));
  CrashModel model(dir.path());
  model.apply({.kind = ChangeKind::create, .path = "b"});
  model.apply({.kind = ChangeKind::sync_directory, .path = "."});
  model.apply({.kind = ChangeKind::write, .path = "b", .offset = 2048, .bytes = bytes(written)});
  std::vector<std::string> found;
  const std::size_t count = model.for_each_state([&](const DiskState& state) {
    EXPECT_EQ(bytes_text(state, "a"), old);
    const std::string text = bytes_text(state, "b");
    std::string blocks;
    for (std::size_t at = 0; at < text.size(); at += 4096) {
      blocks += text.find('n', at) < at + 4096 ? 'n' : '0';
    }
    found.push_back(blocks);
  });
  EXPECT_EQ(count, 9u);
  EXPECT_THAT(found, testing::UnorderedElementsAre("", "000", "00n", "0n0", "0nn", "n00", "n0n",
                                                   "nn0", "nnn"));
  std::mt19937_64 random(1);
  std::unordered_set<std::string> sampled;
  for (int i = 0; i < 1000; ++i) sampled.insert(fingerprint(model.random_state(random)));
  EXPECT_EQ(sampled.size(), 9u) << "every state, and no other";
}

// A file is in the one directory or in the other, if that is there, until where it is now is
// synced.
TEST(CrashModel, MovesAFileFromDirectoryToDirectory) {
  const TempDir dir;
  std::filesystem::create_directory(dir / "from");
  write_file(dir / "from/a", "x");
  CrashModel model(dir.path());
  model.apply({.kind = ChangeKind::make_directory, .path = "to"});
  model.apply({.kind = ChangeKind::rename, .path = "from/a", .to = "to/b"});
  const char *const old = "from:/ from/a:x to:/", *const now = "from:/ to:/ to/b:x";
  EXPECT_THAT(states_of(model), ElementsAre("from:/", "from:/ from/a:x", old, now));
  model.apply({.kind = ChangeKind::sync_directory, .path = "from"});
  EXPECT_EQ(states_of(model).size(), 4u) << "it lies there no longer";
  model.apply({.kind = ChangeKind::sync_directory, .path = "."});
  EXPECT_THAT(states_of(model), ElementsAre(old, now));
  model.apply({.kind = ChangeKind::sync_directory, .path = "to"});
  EXPECT_THAT(states_of(model), ElementsAre(now));
}

TEST(CrashModel, RefusesWhatItDoesNotModel) {
  const TempDir dir;
  CrashModel model(dir.path());
  model.apply({.kind = ChangeKind::make_directory, .path = "d"});
  model.apply({.kind = ChangeKind::remove, .path = "d"});
  model.apply({.kind = ChangeKind::create, .path = "d"});
  EXPECT_THROW(states_of(model), std::logic_error);
}

}  // namespace
}  // namespace shardwise
