#include "shardwise/checkpoint/detail/hdf5/hdf5_objects.h"

#include <algorithm>
#include <cassert>
#include <limits>

#include "shardwise/checkpoint/detail/hdf5/hdf5_header.h"

namespace shardwise::detail {
namespace {

// Object header messages and selections by their numbers in the specification.
constexpr std::uint8_t kDataspace = 0x01, kDatatype = 0x03, kFillValue = 0x05, kLayout = 0x08,
                       kAttribute = 0x0C, kAttributeInfo = 0x15;
constexpr std::uint32_t kHyperslab = 2, kAll = 3;

// HDF5's own least size of a global heap collection.
constexpr std::uint64_t kCollectionBytes = 4096, kCollectionPrefix = 16, kHeapObjectPrefix = 16;

void put_dataspace(Hdf5Bytes& out, const Shape& shape) {
  const auto simple = static_cast<std::uint8_t>(!shape.empty());  // else a scalar
  out.put(std::uint8_t{2});                                       // version
  out.put(static_cast<std::uint8_t>(shape.size()));
  out.put(simple);  // the largest extents follow
  out.put(simple);
  for (const std::int64_t extent : shape) out.put(extent);
  for (const std::int64_t extent : shape) out.put(extent);  // it cannot grow
}

/// The messages that every dataset begins with.
void put_type_and_space(Hdf5Header& header, std::span<const std::byte> type, const Shape& shape) {
  header.message(kDataspace, 0, [&](Hdf5Bytes& out) { put_dataspace(out, shape); });
  header.message(kDatatype, Hdf5Header::kConstant, [&](Hdf5Bytes& out) { out.put(type); });
}

/// A value that readers see where nothing was written.
void put_fill(Hdf5Header& header, std::span<const std::byte> value) {
  header.message(kFillValue, Hdf5Header::kConstant, [&](Hdf5Bytes& out) {
    out.put(std::uint8_t{3});     // version
    out.put(std::uint8_t{0x2A});  // allocated late, written if set, and it is set
    out.put(static_cast<std::uint32_t>(value.size()));
    out.put(value);
  });
}

void put_contiguous_layout(Hdf5Header& header, std::uint64_t address, std::uint64_t bytes) {
  // Once there is storage it stays where it is.
  const std::uint8_t flags = address == kHdf5NoAddress ? 0 : Hdf5Header::kConstant;
  header.message(kLayout, flags, [&](Hdf5Bytes& out) {
    out.put(std::uint8_t{4});  // version
    out.put(std::uint8_t{1});  // contiguous
    out.put(address);
    out.put(bytes);
  });
}

/// Scalars of fixed length, in UTF-8. A text without characters is one NUL.
void put_attributes(Hdf5Header& header, std::span<const Hdf5Attribute> attributes) {
  header.message(kAttributeInfo, Hdf5Header::kNotShared, [](Hdf5Bytes& out) {
    out.put(std::uint16_t{0});  // version and flags: no order of creation
    out.put(kHdf5NoAddress);    // nothing outside this header
    out.put(kHdf5NoAddress);
  });
  for (const Hdf5Attribute& attribute : attributes) {
    assert(attribute.text.size() <= kMaxHdf5Text);
    const std::string_view text =
        attribute.text.empty() ? std::string_view("\0", 1) : attribute.text;
    header.message(kAttribute, 0, [&](Hdf5Bytes& out) {
      out.put(std::uint16_t{3});  // version and flags
      out.put(static_cast<std::uint16_t>(attribute.name.size() + 1));
      out.put(std::uint16_t{8});  // bytes of the type
      out.put(std::uint16_t{4});  // bytes of the dataspace
      out.put(std::uint8_t{0});   // the name is ASCII
      out.put_terminated(attribute.name);
      out.put(std::uint32_t{0x1113});  // type: a string in UTF-8 that NULs fill up
      out.put(static_cast<std::uint32_t>(text.size()));
      put_dataspace(out, {});
      out.put(text);
    });
  }
}

/// The box as a selection; in 32 bits if they are enough, as the library writes it.
void put_selection(Hdf5Bytes& out, const Box& box) {
  const auto rank = static_cast<std::uint32_t>(box.rank());
  bool small = true;
  for (std::size_t d = 0; d < box.rank(); ++d) {
    small = small && box.end(d) <= std::numeric_limits<std::uint32_t>::max();
  }
  out.put(kHyperslab);
  if (small) {
    out.put(std::uint32_t{1});  // version
    out.put(std::uint32_t{0});
    out.put(8 + 8 * rank);  // bytes from here on
    out.put(rank);
    out.put(std::uint32_t{1});  // blocks
    for (std::size_t d = 0; d < rank; ++d) out.put(static_cast<std::uint32_t>(box.begin(d)));
    for (std::size_t d = 0; d < rank; ++d) out.put(static_cast<std::uint32_t>(box.end(d) - 1));
    return;
  }
  out.put(std::uint32_t{2});  // version
  out.put(std::uint8_t{1});   // regular
  out.put(4 + 32 * rank);     // bytes from here on
  out.put(rank);
  for (std::size_t d = 0; d < rank; ++d) {
    out.put(box.begin(d));
    out.put(std::int64_t{1});  // stride
    out.put(std::int64_t{1});  // blocks
    out.put(box.extent(d));
  }
}

}  // namespace

std::vector<std::byte> hdf5_type_message(const H5Type& type) {
  std::size_t size = 0;
  check_hdf5(H5Tencode(type.get(), nullptr, &size), "encode a type");
  std::vector<std::byte> encoded(size);
  check_hdf5(H5Tencode(type.get(), encoded.data(), &size), "encode a type");
  encoded.erase(encoded.begin(), encoded.begin() + 2);  // message number and version of H5Tencode
  return encoded;
}

Hdf5Types::Hdf5Types() {
  for (const DType dtype : all_dtypes()) {
    messages_.resize(std::max(messages_.size(), static_cast<std::size_t>(dtype) + 1));
    messages_[static_cast<std::size_t>(dtype)] = hdf5_type_message(hdf5_type(dtype));
  }
}

std::uint64_t hdf5_address(const H5Dataset& dataset) {
  H5O_info_t info;
  check_hdf5(H5Oget_info2(dataset.get(), &info, H5O_INFO_BASIC), "find an object header");
  return info.addr;
}

std::uint64_t Hdf5Datasets::add_contiguous(std::span<const std::byte> type, const Shape& shape,
                                           std::uint64_t address, std::uint64_t bytes) {
  Hdf5Header header(out_);
  put_type_and_space(header, type, shape);
  header.message(kFillValue, Hdf5Header::kConstant, [](Hdf5Bytes& out) {
    out.put(std::uint8_t{3});     // version
    out.put(std::uint8_t{0x05});  // allocated early, never written
  });
  put_contiguous_layout(header, address, bytes);
  return header.finish();
}

std::uint64_t Hdf5Datasets::add_empty(std::span<const std::byte> type, const Shape& shape,
                                      std::span<const std::byte> fill,
                                      std::span<const Hdf5Attribute> attributes) {
  Hdf5Header header(out_);
  put_type_and_space(header, type, shape);
  put_fill(header, fill);
  put_contiguous_layout(header, kHdf5NoAddress, 0);
  put_attributes(header, attributes);
  return header.finish();
}

std::uint64_t Hdf5Datasets::add_virtual(std::span<const std::byte> type, const Shape& shape,
                                        std::span<const std::byte> fill,
                                        std::span<const Hdf5Mapping> mappings,
                                        std::span<const Hdf5Attribute> attributes) {
  const HeapObject object = add_mappings(mappings);
  Hdf5Header header(out_);
  put_type_and_space(header, type, shape);
  put_fill(header, fill);
  header.message(kLayout, 0, [&](Hdf5Bytes& out) {
    out.put(std::uint8_t{4});  // version
    out.put(std::uint8_t{3});  // virtual
    out.put(object.collection);
    out.put(object.index);
  });
  put_attributes(header, attributes);
  return header.finish();
}

Hdf5Datasets::HeapObject Hdf5Datasets::add_mappings(std::span<const Hdf5Mapping> mappings) {
  Hdf5Bytes object(0);
  object.put(std::uint8_t{0});  // version
  object.put(std::uint64_t{mappings.size()});
  for (const Hdf5Mapping& mapping : mappings) {
    object.put_terminated(mapping.file);
    object.put_terminated(mapping.dataset);
    if (mapping.is_same_box) {
      put_selection(object, mapping.box);
    } else {
      object.put(kAll);
      object.put(std::uint32_t{1});  // version
      object.put(std::uint64_t{0});  // reserved, and no bytes more
    }
    put_selection(object, mapping.box);
  }
  object.put_checksum(0);
  return add_to_heap(object.bytes());
}

Hdf5Datasets::HeapObject Hdf5Datasets::add_to_heap(std::span<const std::byte> object) {
  const std::uint64_t padded = (object.size() + 7) / 8 * 8;
  const std::uint64_t needed = kHeapObjectPrefix + padded;
  if (needed > end_ - next_) {
    collection_ = out_.align();
    next_ = collection_ + kCollectionPrefix;
    end_ = collection_ + std::max(kCollectionBytes, kCollectionPrefix + needed);
    objects_ = 0;
    out_.put(std::string_view("GCOL"));
    out_.put(std::uint32_t{1});  // version
    out_.put(end_ - collection_);
    out_.put_zeros(end_ - next_);
  }
  ++objects_;
  out_.patch(next_, objects_);
  out_.patch(next_ + 8, std::uint64_t{object.size()});
  out_.patch(next_ + kHeapObjectPrefix, object);
  next_ += needed;
  // Object 0 is the free rest; a rest smaller than its own prefix needs no such object.
  if (end_ - next_ >= kHeapObjectPrefix) out_.patch(next_ + 8, end_ - next_);
  return {collection_, objects_};
}

}  // namespace shardwise::detail
