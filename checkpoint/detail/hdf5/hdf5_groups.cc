#include "shardwise/checkpoint/detail/hdf5/hdf5_groups.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <string>

#include "shardwise/checkpoint/detail/hdf5/hdf5_header.h"

namespace shardwise::detail {
namespace {

constexpr std::uint8_t kLinkInfo = 0x02, kLink = 0x06, kGroupInfo = 0x0A;
constexpr std::size_t kMostCompactLinks = 8;  // as in files that the library makes

/// A link of one group.
struct Entry {
  std::string_view name;
  Hdf5Link link;  // but for its path
};

void put_link(Hdf5Bytes& out, const Entry& entry) {
  const bool external = entry.link.address == kHdf5NoAddress;
  const bool long_name = entry.name.size() > 255;
  out.put(std::uint8_t{1});  // version
  // Which fields follow: type of the link, character set; and how many bytes its length has.
  out.put(static_cast<std::uint8_t>(0x10 | (external ? 0x08 : 0) | (long_name ? 1 : 0)));
  if (external) out.put(std::uint8_t{64});
  out.put(std::uint8_t{1});  // UTF-8
  out.put_sized(entry.name.size(), long_name ? 2 : 1);
  out.put(entry.name);
  if (!external) {
    out.put(entry.link.address);
    return;
  }
  out.put(static_cast<std::uint16_t>(entry.link.file.size() + entry.link.object.size() + 3));
  out.put(std::uint8_t{0});  // version and flags
  out.put_terminated(entry.link.file);
  out.put_terminated(entry.link.object);
}

/// A link in a heap: the checksum of its name, and where it lies in the heap.
struct Record {
  std::uint32_t hash;
  std::uint32_t offset;
  std::uint16_t bytes;
  std::string_view name;

  bool operator<(const Record& other) const {
    return hash != other.hash ? hash < other.hash : name < other.name;
  }
};

/// The fractal heap of one group's links: direct blocks of one size, in the first row of an
/// indirect block if there are several.
class LinkHeap {
 public:
  LinkHeap(Hdf5Bytes& out, std::span<const Entry> entries)
      : out_(out), entries_(entries), address_(out.align()) {
    out_.put_zeros(kHeaderBytes);
    for (const Entry& entry : entries) {
      const std::uint64_t begin = encoded_.here();
      put_link(encoded_, entry);
      sizes_.push_back(static_cast<std::uint16_t>(encoded_.here() - begin));
    }
    block_bytes_ = std::clamp(std::bit_ceil(kBlockPrefix + encoded_.here()), kLeastBlock, kBlock);
    while (encoded_.here() / block_bytes_ > kMostBlocks) block_bytes_ *= 2;
    put_blocks();
    put_root();
    patch_header();
  }

  std::uint64_t address() const { return address_; }
  std::vector<Record> take_records() { return std::move(records_); }

 private:
  static constexpr std::uint64_t kHeaderBytes = 146, kBlockPrefix = 21;
  // A look-up of a name reads a block; of a link at most half a block is left free.
  static constexpr std::uint64_t kLeastBlock = 512, kBlock = 8192, kMostBlocks = 16384;
  static constexpr std::uint16_t kMostObject = 4096, kHeapBits = 32;

  void put_blocks() {
    std::uint64_t at = 0;  // in encoded_
    for (std::size_t i = 0; i < entries_.size();) {
      const std::uint64_t begin = out_.align(), offset = blocks_.size() * block_bytes_;
      blocks_.push_back(begin);
      put_block_prefix("FHDB", offset);
      const std::uint64_t checksum_at = out_.here();
      out_.put(std::uint32_t{0});
      for (; i < entries_.size() && out_.here() - begin + sizes_[i] <= block_bytes_; ++i) {
        const auto place = static_cast<std::uint32_t>(offset + (out_.here() - begin));
        const std::string_view name = entries_[i].name;
        records_.push_back({hdf5_checksum(std::as_bytes(std::span(name))), place, sizes_[i], name});
        out_.put(encoded_.from(at).first(sizes_[i]));
        at += sizes_[i];
      }
      const std::uint64_t left = block_bytes_ - (out_.here() - begin);
      free_ += left;
      out_.put_zeros(left);
      out_.patch(checksum_at, hdf5_checksum(out_.from(begin)));
    }
  }

  void put_block_prefix(std::string_view signature, std::uint64_t offset) {
    out_.put(signature);
    out_.put(std::uint8_t{0});  // version
    out_.put(address_);
    out_.put(static_cast<std::uint32_t>(offset));
  }

  void put_root() {
    root_ = blocks_.front();
    if (blocks_.size() == 1) return;
    width_ = std::max(width_, std::bit_ceil(blocks_.size()));
    root_ = out_.align();
    put_block_prefix("FHIB", 0);
    for (const std::uint64_t block : blocks_) out_.put(block);
    for (std::size_t i = blocks_.size(); i < width_; ++i) out_.put(kHdf5NoAddress);
    out_.put_checksum(root_);
  }

  void patch_header() {
    const bool several = blocks_.size() > 1;
    const std::uint64_t used = blocks_.size() * block_bytes_;
    Hdf5Bytes header(address_);
    header.put(std::string_view("FRHP"));
    header.put(std::uint8_t{0});   // version
    header.put(std::uint16_t{7});  // bytes of a heap id
    header.put(std::uint16_t{0});  // no filters
    header.put(std::uint8_t{2});   // direct blocks have checksums
    header.put(std::uint32_t{kMostObject});
    header.put(std::uint64_t{0});  // next id of a huge object: the heap has none
    header.put(kHdf5NoAddress);
    header.put(free_);
    header.put(kHdf5NoAddress);  // no list of free space
    header.put(several ? width_ * block_bytes_ : block_bytes_);
    header.put(used);
    header.put(used);  // where the next block would begin
    header.put(std::uint64_t{entries_.size()});
    header.put_zeros(32);  // huge and tiny objects: bytes and number
    header.put(static_cast<std::uint16_t>(width_));
    header.put(block_bytes_);
    header.put(several ? block_bytes_ : kBlock);  // of the largest direct block
    header.put(kHeapBits);
    header.put(std::uint16_t{1});  // rows of a new indirect block
    header.put(root_);
    header.put(static_cast<std::uint16_t>(several));  // its rows; none: it is a direct block
    header.put_checksum(address_);
    assert(header.bytes().size() == kHeaderBytes);
    out_.patch(address_, header.bytes());
  }

  Hdf5Bytes& out_;
  std::span<const Entry> entries_;
  std::uint64_t address_, block_bytes_ = 0, free_ = 0, root_ = 0;
  std::uint64_t width_ = 4;  // of a row
  Hdf5Bytes encoded_{0};
  std::vector<std::uint16_t> sizes_;
  std::vector<std::uint64_t> blocks_;
  std::vector<Record> records_;
};

/// The B-tree (version 2) of a group's links by the checksum of their names: one leaf, or one node
/// over several; nodes are made as large as that needs.
class LinkTree {
 public:
  LinkTree(Hdf5Bytes& out, std::vector<Record> records) : out_(out), records_(std::move(records)) {
    std::sort(records_.begin(), records_.end());
    while (capacity() < records_.size()) node_bytes_ *= 2;
  }

  /// The tree's address.
  std::uint64_t put() {
    std::uint64_t root = 0;
    const bool deep = records_.size() > most_in_leaf();
    std::size_t in_root = records_.size();
    if (deep) {
      root = put_two_levels();
      in_root = leaves() - 1;
    } else {
      root = put_leaf(0, records_.size());
    }
    const std::uint64_t address = out_.align();
    put_prefix("BTHD");
    out_.put(static_cast<std::uint32_t>(node_bytes_));
    out_.put(static_cast<std::uint16_t>(kRecordBytes));
    out_.put(static_cast<std::uint16_t>(deep));  // depth
    out_.put(std::uint8_t{100});                 // per cent: fuller nodes split, emptier ones merge
    out_.put(std::uint8_t{40});
    out_.put(root);
    out_.put(static_cast<std::uint16_t>(in_root));
    out_.put(std::uint64_t{records_.size()});
    out_.put_checksum(address);
    return address;
  }

 private:
  static constexpr std::size_t kRecordBytes = 11, kNodePrefix = 10;

  // The bytes that a leaf's number of records takes in the node above.
  std::size_t count_bytes() const { return (std::bit_width(most_in_leaf()) - 1) / 8 + 1; }
  std::size_t most_in_leaf() const { return (node_bytes_ - kNodePrefix) / kRecordBytes; }
  std::size_t most_in_root() const {
    const std::size_t child = 8 + count_bytes();
    return (node_bytes_ - kNodePrefix - child) / (kRecordBytes + child);
  }
  std::size_t capacity() const { return (most_in_root() + 1) * (most_in_leaf() + 1) - 1; }

  // Records between two leaves lie in the root.
  std::size_t leaves() const {
    return (records_.size() + 1 + most_in_leaf()) / (most_in_leaf() + 1);
  }

  void put_prefix(std::string_view signature) {
    out_.put(signature);
    out_.put(std::uint8_t{0});  // version
    out_.put(std::uint8_t{5});  // links by name
  }

  void put_record(const Record& record) {
    out_.put(record.hash);
    out_.put(std::uint8_t{0});  // the heap id: of an ordinary object
    out_.put(record.offset);
    out_.put(record.bytes);
  }

  void finish_node(std::uint64_t begin) {
    out_.put_checksum(begin);
    out_.put_zeros(node_bytes_ - (out_.here() - begin));
  }

  std::uint64_t put_leaf(std::size_t first, std::size_t end) {
    const std::uint64_t begin = out_.align();
    put_prefix("BTLF");
    for (std::size_t i = first; i < end; ++i) put_record(records_[i]);
    finish_node(begin);
    return begin;
  }

  std::uint64_t put_two_levels() {
    // Leaf number i ends before records_[ends[i]], which lies in the root.
    const std::size_t count = leaves(), in_leaves = records_.size() - (count - 1);
    std::vector<std::size_t> ends;
    std::vector<std::uint64_t> addresses;
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t first = i == 0 ? 0 : ends.back() + 1;
      ends.push_back(in_leaves * (i + 1) / count + i);
      addresses.push_back(put_leaf(first, ends.back()));
    }
    const std::uint64_t begin = out_.align();
    put_prefix("BTIN");
    for (std::size_t i = 0; i + 1 < count; ++i) put_record(records_[ends[i]]);
    for (std::size_t i = 0; i < count; ++i) {
      out_.put(addresses[i]);
      out_.put_sized(ends[i] - (i == 0 ? 0 : ends[i - 1] + 1), count_bytes());
    }
    finish_node(begin);
    return begin;
  }

  Hdf5Bytes& out_;
  std::vector<Record> records_;
  std::size_t node_bytes_ = 512;
};

std::uint64_t put_group(Hdf5Bytes& out, std::span<const Entry> entries) {
  const bool compact = entries.size() <= kMostCompactLinks;
  std::uint64_t heap = kHdf5NoAddress, tree = kHdf5NoAddress;
  if (!compact) {
    LinkHeap links(out, entries);
    heap = links.address();
    tree = LinkTree(out, links.take_records()).put();
  }
  Hdf5Header header(out);
  header.message(kLinkInfo, 0, [&](Hdf5Bytes& body) {
    body.put(std::uint16_t{0});  // version and flags
    body.put(heap);
    body.put(tree);
  });
  header.message(kGroupInfo, Hdf5Header::kConstant, [](Hdf5Bytes& body) {
    body.put(std::uint16_t{0});  // version and flags
  });
  if (compact) {
    for (const Entry& entry : entries) {
      header.message(kLink, 0, [&](Hdf5Bytes& body) { put_link(body, entry); });
    }
  }
  return header.finish();
}

/// The group that holds links whose paths agree up to `begin`, and its groups before it.
std::uint64_t put_groups(Hdf5Bytes& out, std::span<const Hdf5Link> links, std::size_t begin) {
  std::vector<Entry> entries;
  for (std::size_t i = 0; i < links.size();) {
    const std::string_view rest = links[i].path.substr(begin);
    const std::size_t slash = rest.find('/');
    if (slash == std::string_view::npos) {
      entries.push_back({rest, links[i++]});
      continue;
    }
    const std::string_view name = rest.substr(0, slash + 1);
    std::size_t end = i + 1;
    while (end < links.size() && links[end].path.substr(begin).starts_with(name)) ++end;
    const std::uint64_t group = put_groups(out, links.subspan(i, end - i), begin + name.size());
    entries.push_back({rest.substr(0, slash), {.path = {}, .address = group}});
    i = end;
  }
  return put_group(out, entries);
}

}  // namespace

std::uint64_t add_hdf5_groups(Hdf5Bytes& out, std::vector<Hdf5Link> links) {
  // In the order of bytes, paths that begin alike up to a "/" follow one another.
  const auto before = [](const Hdf5Link& a, const Hdf5Link& b) { return a.path < b.path; };
  if (!std::is_sorted(links.begin(), links.end(), before)) {
    std::sort(links.begin(), links.end(), before);
  }
  return put_groups(out, links, 1);
}

void set_hdf5_root(std::span<std::byte> file, std::uint64_t root, std::uint64_t end) {
  constexpr std::size_t kEnd = 28, kRoot = 36, kChecksum = 44;
  assert(file.size() >= 48 && file[8] >= std::byte{2});
  std::memcpy(file.data() + kEnd, &end, sizeof end);
  std::memcpy(file.data() + kRoot, &root, sizeof root);
  const std::uint32_t checksum = hdf5_checksum(file.first(kChecksum));
  std::memcpy(file.data() + kChecksum, &checksum, sizeof checksum);
}

}  // namespace shardwise::detail
