#include "shardwise/storage/detail/hdf5.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sys/mman.h>

#include <array>
#include <cstdint>
#include <new>
#include <string>

namespace shardwise::detail {
namespace {

// HDF5 has global state, so one lock guards all of it.
Mutex hdf5_mutex;

// A fork waits for the lock. A child forked during a call would inherit a half-changed library and
// a lock without an owner.
void hold() SHARDWISE_ACQUIRE(hdf5_mutex) { hdf5_mutex.lock(); }
void let_go() SHARDWISE_RELEASE(hdf5_mutex) { hdf5_mutex.unlock(); }
[[maybe_unused]] const int fork_handlers = ::pthread_atfork(hold, let_go, let_go);

// HDF5 1.10 crashes if some of its calls get no memory, so a sequence of calls begins only if there
// is room for a file's metadata and for allocations of other threads.
constexpr std::size_t kRoomBytes = std::size_t{32} << 20;

void require_room() {
  void* const room =
      ::mmap(nullptr, kRoomBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (room == MAP_FAILED) throw std::bad_alloc();
  ::munmap(room, kRoomBytes);
}

struct Innermost {
  std::string text = "no reason given";
  bool is_of_memory = false;
};

herr_t keep_innermost(unsigned depth, const H5E_error2_t* error, void* kept) {
  if (depth != 0) return 0;
  auto& innermost = *static_cast<Innermost*>(kept);
  innermost.is_of_memory = error->maj_num == H5E_RESOURCE && error->min_num == H5E_NOSPACE;
  try {
    innermost.text =
        fmt::format("{} ({})", error->desc != nullptr ? error->desc : "", error->func_name);
  } catch (...) {
    return -1;
  }
  return 0;
}

// A float of 1 or 2 bytes, for which HDF5 1.10 has no name. The fields are set before the size,
// since they must be inside it.
H5Type narrow_type(std::size_t bytes, std::size_t exponent_bits) {
  const std::size_t sign = 8 * bytes - 1, mantissa_bits = sign - exponent_bits;
  const std::size_t bias = (std::size_t{1} << (exponent_bits - 1)) - 1;
  H5Type type(H5Tcopy(H5T_IEEE_F32LE), "copy a float type");
  check_hdf5(H5Tset_fields(type.get(), sign, mantissa_bits, exponent_bits, 0, mantissa_bits),
             "set the fields of a narrow float");
  check_hdf5(H5Tset_size(type.get(), bytes), "set the size of a narrow float");
  check_hdf5(H5Tset_ebias(type.get(), bias), "set the bias of a narrow float");
  return type;
}

H5Type complex_type(hid_t part, std::size_t part_bytes) {
  H5Type type(H5Tcreate(H5T_COMPOUND, 2 * part_bytes), "make a complex type");
  check_hdf5(H5Tinsert(type.get(), "r", 0, part), "make a complex type");
  check_hdf5(H5Tinsert(type.get(), "i", part_bytes, part), "make a complex type");
  return type;
}

H5Type bool_type() {
  H5Type type(H5Tenum_create(H5T_STD_I8LE), "make the bool type");
  constexpr std::array<std::pair<const char*, std::int8_t>, 2> members{{{"FALSE", 0}, {"TRUE", 1}}};
  for (const auto& [name, value] : members) {
    check_hdf5(H5Tenum_insert(type.get(), name, &value), "make the bool type");
  }
  return type;
}

hid_t standard_type(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return H5T_IEEE_F64LE;
    case DType::f32:
      return H5T_IEEE_F32LE;
    case DType::i64:
      return H5T_STD_I64LE;
    case DType::i32:
      return H5T_STD_I32LE;
    case DType::i16:
      return H5T_STD_I16LE;
    case DType::i8:
      return H5T_STD_I8LE;
    case DType::u64:
      return H5T_STD_U64LE;
    case DType::u32:
      return H5T_STD_U32LE;
    case DType::u16:
      return H5T_STD_U16LE;
    case DType::u8:
    // HDF5 cannot describe a float without infinities, one whose NaN is minus zero, or one without
    // a sign.
    case DType::f8_e4m3fn:
    case DType::f8_e4m3fnuz:
    case DType::f8_e5m2fnuz:
    case DType::f8_e8m0fnu:
      return H5T_STD_U8LE;
    case DType::f16:
    case DType::bf16:
    case DType::boolean:
    case DType::f8_e5m2:
    case DType::c64:
    case DType::c128:
      break;
  }
  return H5I_INVALID_HID;
}

std::array<hsize_t, kMaxRank> extents_of(const Dims& dims) {
  std::array<hsize_t, kMaxRank> all{};
  for (std::size_t d = 0; d < dims.size(); ++d) all[d] = static_cast<hsize_t>(dims[d]);
  return all;
}

// The type in memory.
H5Type memory_type(DType dtype) {
  H5Type type = hdf5_type(dtype);
  const H5T_class_t kind = H5Tget_class(type.get());
  if (kind == H5T_INTEGER || kind == H5T_FLOAT) {
    H5Tset_order(type.get(), H5Tget_order(H5T_NATIVE_INT));
  }
  return type;
}

// A compressed chunk is decoded as a whole.
constexpr std::size_t kMostChunkBytes = std::size_t{1} << 30;

std::string_view name_of(H5T_class_t kind) {
  switch (kind) {
    case H5T_STRING:
      return "strings";
    case H5T_COMPOUND:
      return "records";
    case H5T_REFERENCE:
      return "references";
    case H5T_ENUM:
      return "an enumeration";
    case H5T_VLEN:
      return "lists";
    case H5T_ARRAY:
      return "arrays";
    case H5T_OPAQUE:
      return "raw bytes";
    default:
      return "numbers of a type that shardwise has not";
  }
}

/// Names a filter that the library lacks, and a remedy; empty if it has all.
std::string missing_filter(const H5Properties& made) {
  struct Known {
    H5Z_filter_t number;
    std::string_view name;
  };
  static constexpr Known kKnown[] = {
      {4, "szip"},           {307, "bzip2"}, {32000, "lzf"},  {32001, "blosc"}, {32004, "lz4"},
      {32008, "bitshuffle"}, {32013, "zfp"}, {32015, "zstd"}, {32017, "sz"},    {32026, "blosc2"}};
  const int filters = H5Pget_nfilters(made.get());
  for (int i = 0; i < filters; ++i) {
    unsigned flags = 0, config = 0;
    std::size_t values = 0;
    const H5Z_filter_t filter = H5Pget_filter2(made.get(), static_cast<unsigned>(i), &flags,
                                               &values, nullptr, 0, nullptr, &config);
    if (filter >= 0 && H5Zfilter_avail(filter) > 0) continue;
    std::string name = "without a known name";
    for (const Known& known : kKnown) {
      if (known.number == filter) name = known.name;
    }
    return fmt::format(
        "its filter {} (number {}) is not installed for HDF5: HDF5_PLUGIN_PATH names "
        "a folder of plugins, and `h5repack -f GZIP=4 OLD NEW` on a machine that has "
        "it, or h5py with compression=\"gzip\", writes the file without it",
        name, filter);
  }
  return {};
}

}  // namespace

Hdf5Lock::Hdf5Lock(For sequence) : lock_(hdf5_mutex) {
  if (sequence == For::calls) require_room();
  // The setting is per thread, and a thread has none before its first call of the library.
  H5open();
  H5Eget_auto2(H5E_DEFAULT, &printer_, &printer_data_);
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

Hdf5Lock::~Hdf5Lock() { H5Eset_auto2(H5E_DEFAULT, printer_, printer_data_); }

void throw_hdf5(std::string_view what, ErrorCode code) {
  Innermost innermost;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, keep_innermost, &innermost);
  H5Eclear2(H5E_DEFAULT);
  throw Error(innermost.is_of_memory ? ErrorCode::resource_exhausted : code,
              fmt::format("{}: HDF5: {}", what, innermost.text));
}

H5Type hdf5_type(DType dtype) {
  if (dtype == DType::f16) return narrow_type(2, 5);
  if (dtype == DType::bf16) return narrow_type(2, 8);
  if (dtype == DType::f8_e5m2) return narrow_type(1, 5);
  if (dtype == DType::c64) return complex_type(H5T_IEEE_F32LE, 4);
  if (dtype == DType::c128) return complex_type(H5T_IEEE_F64LE, 8);
  if (dtype == DType::boolean) return bool_type();
  return H5Type(H5Tcopy(standard_type(dtype)), "copy a number type");
}

std::optional<Hdf5Element> hdf5_element(const H5Type& type) {
  const H5T_class_t kind = H5Tget_class(type.get());
  const bool has_order = kind == H5T_INTEGER || kind == H5T_FLOAT;
  const H5T_order_t host = H5Tget_order(H5T_NATIVE_INT);
  for (const DType dtype : all_dtypes()) {
    H5Type known = hdf5_type(dtype);
    if (H5Tequal(type.get(), known.get()) > 0) {
      return Hdf5Element{dtype, size_bytes(dtype) > 1 && host != H5T_ORDER_LE};
    }
    if (size_bytes(dtype) == 1 || H5Tget_class(known.get()) != kind) continue;
    if (has_order) {
      H5Tset_order(known.get(), H5T_ORDER_BE);
    } else if (dtype == DType::c64 || dtype == DType::c128) {
      known =
          dtype == DType::c64 ? complex_type(H5T_IEEE_F32BE, 4) : complex_type(H5T_IEEE_F64BE, 8);
    } else {
      continue;
    }
    if (H5Tequal(type.get(), known.get()) > 0) return Hdf5Element{dtype, host != H5T_ORDER_BE};
  }
  return std::nullopt;
}

Hdf5Description describe_hdf5(hid_t dataset, const std::string& what) {
  Hdf5Description description;
  const auto cannot = [&](std::string why_not) {
    description.why_not = std::move(why_not);
    return description;
  };
  const H5Type type(H5Dget_type(dataset), what, kBroken);
  const std::optional<Hdf5Element> element = description.element = hdf5_element(type);
  // The layout is checked before the shape: for the shape, the library opens a virtual dataset's
  // files, and one of them may be a pipe.
  const H5Properties made(H5Dget_create_plist(dataset), what, kBroken);
  const H5D_layout_t layout = H5Pget_layout(made.get());
  if (layout == H5D_VIRTUAL || H5Pget_external_count(made.get()) != 0) {
    return cannot("its elements are in other files");
  }
  if (!element) return cannot(std::string(name_of(H5Tget_class(type.get()))));
  const H5Space space(H5Dget_space(dataset), what, kBroken);
  const int rank = H5Sget_simple_extent_ndims(space.get());
  if (H5Sget_simple_extent_type(space.get()) == H5S_NULL) return cannot("it has no shape");
  if (rank < 0 || rank > static_cast<int>(kMaxRank)) {
    return cannot(fmt::format("it has {} dims, at most {} here", rank, kMaxRank));
  }
  std::array<hsize_t, kMaxRank> extents{};
  check_hdf5(H5Sget_simple_extent_dims(space.get(), extents.data(), nullptr), what, kBroken);
  std::size_t bytes = size_bytes(element->dtype);
  bool fits = true;
  for (std::size_t d = 0; d < static_cast<std::size_t>(rank); ++d) {
    fits = fits && std::in_range<std::int64_t>(extents[d]);
    if (fits) description.shape.push_back(static_cast<std::int64_t>(extents[d]));
    fits = fits && !__builtin_mul_overflow(bytes, extents[d], &bytes);
  }
  if (!fits || !std::in_range<std::int64_t>(bytes)) {
    throw Error(kBroken, what + ": its shape has 2^63 bytes or more");
  }
  description.bytes = bytes;
  if (std::string missing = missing_filter(made); !missing.empty())
    return cannot(std::move(missing));
  if (H5Pget_nfilters(made.get()) <= 0 || layout != H5D_CHUNKED) return description;
  std::array<hsize_t, kMaxRank> chunk{};
  check_hdf5(H5Pget_chunk(made.get(), static_cast<int>(kMaxRank), chunk.data()), what, kBroken);
  description.chunk_bytes = size_bytes(element->dtype);
  for (std::size_t d = 0; d < description.shape.size(); ++d) {
    fits = fits &&
           !__builtin_mul_overflow(description.chunk_bytes, chunk[d], &description.chunk_bytes);
  }
  if (fits && description.chunk_bytes <= kMostChunkBytes) return description;
  return cannot(fmt::format("its chunks have more than {} bytes", kMostChunkBytes));
}

H5File open_hdf5_file(const std::filesystem::path& path, std::size_t cache_bytes) {
  const H5Properties access(H5Pcreate(H5P_FILE_ACCESS), "make a property list");
  constexpr std::size_t kCacheSlots = 12421;  // a prime
  check_hdf5(H5Pset_cache(access.get(), 0, kCacheSlots, cache_bytes, 1), "set the chunk cache");
  return H5File(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.get()),
                fmt::format("read {}", path.string()), ErrorCode::corrupt);
}

void read_hdf5_box(const H5Dataset& dataset, DType dtype, const Box& box, std::byte* out,
                   std::string_view what) {
  const H5Space space(H5Dget_space(dataset.get()), what, kBroken);
  const H5Space memory = hdf5_space(box.shape());
  if (box.rank() > 0) {
    const auto begin = extents_of(box.begin()), count = extents_of(box.shape());
    check_hdf5(H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, begin.data(), nullptr, count.data(),
                                   nullptr),
               what, kBroken);
  }
  const H5Type type = memory_type(dtype);
  check_hdf5(H5Dread(dataset.get(), type.get(), memory.get(), space.get(), H5P_DEFAULT, out), what,
             kBroken);
}

H5Space hdf5_space(const Shape& shape) {
  if (shape.empty()) return H5Space(H5Screate(H5S_SCALAR), "make a scalar dataspace");
  const auto extents = extents_of(shape);
  return H5Space(H5Screate_simple(static_cast<int>(shape.size()), extents.data(), nullptr),
                 "make a dataspace");
}

H5Properties hdf5_timeless(hid_t property_class) {
  H5Properties list(H5Pcreate(property_class), "make a property list");
  check_hdf5(H5Pset_obj_track_times(list.get(), false), "switch object times off");
  return list;
}

}  // namespace shardwise::detail
