#include "testing/crash_states.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <span>
#include <stdexcept>
#include <utility>

#include "shardwise/storage/hash.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

constexpr std::size_t kBlockBytes = 4096;

std::vector<std::byte> bytes_of_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

// The bytes of one block, zeros where the content ends before.
std::vector<std::byte> block_of(const std::vector<std::byte>& content, std::size_t begin,
                                std::size_t end) {
  std::vector<std::byte> block(end - begin);
  const std::size_t there = std::min(content.size(), end);
  if (there > begin) std::memcpy(block.data(), content.data() + begin, there - begin);
  return block;
}

// Each value once, the newest first.
template <class Value>
void add_once(std::vector<Value>& values, Value value) {
  if (std::find(values.begin(), values.end(), value) == values.end()) {
    values.push_back(std::move(value));
  }
}

template <class Value>
const Value& pick(const std::vector<Value>& values, const CrashModel::Choose& choose) {
  return values[values.size() == 1 ? 0 : choose(values.size())];
}

}  // namespace

void write_state(const DiskState& state, const std::filesystem::path& folder) {
  for (const auto& [path, content] : state) {
    if (content) {
      write_file(folder / path, *content);
    } else {
      std::filesystem::create_directory(folder / path);
    }
  }
}

std::string fingerprint(const DiskState& state) {
  Hasher128 hasher;
  for (const auto& [path, content] : state) {
    const std::string head = path + (content ? "\n" + std::to_string(content->size()) : "/") + "\n";
    const auto bytes = std::as_bytes(std::span(head));
    hasher.update(bytes.data(), bytes.size());
    if (content) hasher.update(content->data(), content->size());
  }
  return to_hex(hasher.digest());
}

CrashModel::CrashModel(const std::filesystem::path& folder) {
  nodes_.push_back({.places = {{0, ""}}});
  add_folder(folder, 0);
}

void CrashModel::add_folder(const std::filesystem::path& folder, std::size_t number) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    Node node{.places = {{number, entry.path().filename().string()}}};
    if (!entry.is_directory()) {
      node.contents.push_back(
          std::make_shared<const std::vector<std::byte>>(bytes_of_file(entry.path())));
    }
    nodes_.push_back(std::move(node));
    if (entry.is_directory()) add_folder(entry.path(), nodes_.size() - 1);
  }
}

std::size_t CrashModel::find(const std::string& path) const {
  std::size_t number = 0;
  for (const std::filesystem::path& name : std::filesystem::path(path)) {
    if (name == ".") continue;
    std::size_t next = 1;
    while (next < nodes_.size() && nodes_[next].places.back() != Place{number, name.string()}) {
      ++next;
    }
    if (next == nodes_.size()) throw std::logic_error("crash model: there is no " + path);
    number = next;
  }
  return number;
}

void CrashModel::add(const std::string& path, bool is_file) {
  const std::filesystem::path full = path;
  const std::size_t parent = find(full.parent_path().string());
  Node node{.places = {{parent, ""}, {parent, full.filename().string()}}};
  if (is_file) {
    node.contents.push_back(std::make_shared<const std::vector<std::byte>>());
    files_.push_back(nodes_.size());
  }
  nodes_.push_back(std::move(node));
}

void CrashModel::rename(const Change& change) {
  const std::filesystem::path to = change.to;
  const std::size_t parent = find(to.parent_path().string());
  nodes_[find(change.path)].places.push_back({parent, to.filename().string()});
}

void CrashModel::link(const Change& change) {
  const std::filesystem::path to = change.to;
  const std::size_t parent = find(to.parent_path().string());
  const std::vector<Bytes>& contents = nodes_[find(change.path)].contents;
  if (contents.size() != 1) throw std::logic_error("crash model: not synced: " + change.path);
  nodes_.push_back(
      {.places = {{parent, ""}, {parent, to.filename().string()}}, .contents = {contents.front()}});
}

void CrashModel::apply(const Change& change) {
  const auto edit = [&](auto&& edit_bytes) {
    std::vector<Bytes>& contents = nodes_[files_[change.file]].contents;
    auto now = std::make_shared<std::vector<std::byte>>(*contents.back());
    edit_bytes(*now);
    contents.push_back(std::move(now));
  };
  switch (change.kind) {
    case ChangeKind::create:
      return add(change.path, true);
    case ChangeKind::reuse:
      files_.push_back(find(change.path));
      return edit(
          [](std::vector<std::byte>& now) { std::fill(now.begin(), now.end(), std::byte{0}); });
    case ChangeKind::make_directory:
      return add(change.path, false);
    case ChangeKind::write:
      return edit([&](std::vector<std::byte>& now) {
        now.resize(std::max(now.size(), change.offset + change.bytes.size()));
        std::copy(change.bytes.begin(), change.bytes.end(),
                  now.begin() + static_cast<std::ptrdiff_t>(change.offset));
      });
    case ChangeKind::resize:
      return edit([&](std::vector<std::byte>& now) { now.resize(change.offset); });
    case ChangeKind::sync: {
      std::vector<Bytes>& contents = nodes_[files_[change.file]].contents;
      contents = {contents.back()};
      return;
    }
    case ChangeKind::rename:
      return rename(change);
    case ChangeKind::link:
      return link(change);
    case ChangeKind::remove: {
      std::vector<Place>& places = nodes_[find(change.path)].places;
      places.push_back({places.back().parent, ""});
      return;
    }
    case ChangeKind::sync_directory: {
      const std::size_t directory = find(change.path);
      for (std::size_t i = 1; i < nodes_.size(); ++i) {
        std::vector<Place>& places = nodes_[i].places;
        if (places.back().parent == directory) places = {places.back()};
      }
      return;
    }
    case ChangeKind::close:
      return;
  }
}

CrashModel::Bytes CrashModel::torn(const std::vector<Bytes>& contents, const Choose& choose) {
  if (contents.size() == 1) return contents.front();
  std::vector<std::size_t> sizes;
  for (auto content = contents.rbegin(); content != contents.rend(); ++content) {
    add_once(sizes, (*content)->size());
  }
  const std::size_t size = pick(sizes, choose);
  auto bytes = std::make_shared<std::vector<std::byte>>();
  bytes->reserve(size);
  for (std::size_t begin = 0; begin < size; begin += kBlockBytes) {
    const std::size_t end = std::min(size, begin + kBlockBytes);
    std::vector<std::vector<std::byte>> versions;
    for (auto content = contents.rbegin(); content != contents.rend(); ++content) {
      add_once(versions, block_of(**content, begin, end));
    }
    const std::vector<std::byte>& block = pick(versions, choose);
    bytes->insert(bytes->end(), block.begin(), block.end());
  }
  return bytes;
}

DiskState CrashModel::state(const Choose& choose) const {
  DiskState state;
  std::vector<std::optional<std::filesystem::path>> paths(nodes_.size());
  std::vector<bool> found(nodes_.size());
  paths[0] = "";
  found[0] = true;
  // A directory comes before its content: if the directory is gone, its content needs no choice.
  const std::function<void(std::size_t)> find_path = [&](std::size_t number) {
    if (found[number]) return;
    found[number] = true;
    const Node& node = nodes_[number];
    std::vector<Place> places;
    bool may_be_there = false;
    for (auto place = node.places.rbegin(); place != node.places.rend(); ++place) {
      add_once(places, *place);
      find_path(place->parent);
      may_be_there = may_be_there || paths[place->parent];
    }
    if (!may_be_there) return;
    const Place& place = pick(places, choose);
    if (place.name.empty() || !paths[place.parent]) return;
    paths[number] = *paths[place.parent] / place.name;
    Bytes content = node.contents.empty() ? nullptr : torn(node.contents, choose);
    if (!state.emplace(paths[number]->generic_string(), std::move(content)).second) {
      throw std::logic_error("crash model: two have the name " + paths[number]->string());
    }
  };
  for (std::size_t i = 1; i < nodes_.size(); ++i) find_path(i);
  return state;
}

std::size_t CrashModel::for_each_state(const std::function<void(const DiskState&)>& visit) const {
  struct Choice {
    std::size_t taken, of;
  };
  // Counts like an odometer; how many digits there are depends on those before.
  std::vector<Choice> choices;
  for (std::size_t count = 1;; ++count) {
    std::size_t at = 0;
    visit(state([&](std::size_t of) {
      if (at == choices.size()) choices.push_back({0, of});
      return choices[at++].taken;
    }));
    while (!choices.empty() && choices.back().taken + 1 == choices.back().of) choices.pop_back();
    if (choices.empty()) return count;
    ++choices.back().taken;
  }
}

DiskState CrashModel::random_state(std::mt19937_64& random) const {
  // Of 64; fair coins alone would never keep nearly all, or nearly nothing, of a large file.
  constexpr std::size_t kept[] = {0, 1, 8, 32, 56, 63, 64};
  const std::size_t newest = kept[random() % std::size(kept)];
  return state([&](std::size_t of) -> std::size_t {
    return random() % 64 < newest ? 0 : 1 + random() % (of - 1);
  });
}

}  // namespace shardwise
