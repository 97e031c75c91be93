#include "shardwise/checkpoint/detail/hdf5/address_driver.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "shardwise/checkpoint/detail/hdf5/hdf5_groups.h"

namespace shardwise::detail {

// The library sees a file object that leads back to the driver. Exceptions stop here.
struct AddressCallbacks {
  struct File {
    H5FD_t base;  // first, as the library casts between the two
    AddressDriver* driver;
  };

  static AddressDriver& driver(H5FD_t* file) { return *reinterpret_cast<File*>(file)->driver; }
  static const AddressDriver& driver(const H5FD_t* file) {
    return *reinterpret_cast<const File*>(file)->driver;
  }

  static H5FD_t* open(const char*, unsigned, hid_t access, haddr_t) {
    const void* const info = H5Pget_driver_info(access);
    if (info == nullptr) return nullptr;
    auto* file = new (std::nothrow) File{};
    if (file == nullptr) return nullptr;
    std::memcpy(&file->driver, info, sizeof(void*));  // the pointer alone
    return &file->base;
  }
  static herr_t close(H5FD_t* file) {
    delete reinterpret_cast<File*>(file);
    return 0;
  }
  static int compare(const H5FD_t* a, const H5FD_t* b) {
    const std::less<const AddressDriver*> less;
    return less(&driver(b), &driver(a)) - less(&driver(a), &driver(b));
  }
  static herr_t query(const H5FD_t*, unsigned long* features) {
    // Not AGGREGATE_SMALLDATA: small raw objects would be cut out of a block of the library's own.
    *features = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_ACCUMULATE_METADATA |
                H5FD_FEAT_DEFAULT_VFD_COMPATIBLE;
    return 0;
  }
  static haddr_t allocate(H5FD_t* file, H5FD_mem_t type, hid_t, hsize_t size) {
    return driver(file).allocate(type, size);
  }
  static haddr_t get_end(const H5FD_t* file, H5FD_mem_t) { return driver(file).end_; }
  static herr_t set_end(H5FD_t* file, H5FD_mem_t, haddr_t end) {
    AddressDriver& self = driver(file);
    self.end_ = std::max<std::uint64_t>(end, self.data_end_);
    return 0;
  }
  static herr_t read(H5FD_t* file, H5FD_mem_t, hid_t, haddr_t address, size_t size, void* out) {
    driver(file).read(address, {static_cast<std::byte*>(out), size});
    return 0;
  }
  static herr_t write(H5FD_t* file, H5FD_mem_t type, hid_t, haddr_t address, size_t size,
                      const void* bytes) {
    AddressDriver& self = driver(file);
    if (type == H5FD_MEM_DRAW && self.data_end_ > 0) return 0;
    try {
      self.write(address, {static_cast<const std::byte*>(bytes), size});
    } catch (...) {
      if (!self.failure_) self.failure_ = std::current_exception();
    }
    return 0;
  }
  static herr_t truncate(H5FD_t* file, hid_t, hbool_t) {
    AddressDriver& self = driver(file);
    try {
      self.tail_.resize(std::max(self.end_, self.data_end_) - self.data_end_);
    } catch (...) {
      if (!self.failure_) self.failure_ = std::current_exception();
    }
    return 0;
  }
};

namespace {

// Filled by name: later versions of HDF5 put other members in between.
H5FD_class_t driver_class() {
  H5FD_class_t result{};
#if H5_VERSION_GE(1, 13, 0)
  result.version = H5FD_CLASS_VERSION;
  result.value = static_cast<H5FD_class_value_t>(H5_VFD_RESERVED + 211);
#endif
  result.name = "shardwise_address";
  result.maxaddr = static_cast<haddr_t>(INT64_MAX);
  result.fc_degree = H5F_CLOSE_STRONG;
  result.fapl_size = sizeof(void*);  // an AddressDriver*
  result.open = AddressCallbacks::open;
  result.close = AddressCallbacks::close;
  result.cmp = AddressCallbacks::compare;
  result.query = AddressCallbacks::query;
  result.alloc = AddressCallbacks::allocate;
  result.get_eoa = AddressCallbacks::get_end;
  result.set_eoa = AddressCallbacks::set_end;
  result.get_eof = AddressCallbacks::get_end;
  result.read = AddressCallbacks::read;
  result.write = AddressCallbacks::write;
  result.truncate = AddressCallbacks::truncate;
  constexpr H5FD_mem_t map[] = H5FD_FLMAP_DICHOTOMY;
  std::copy(std::begin(map), std::end(map), result.fl_map);
  return result;
}

// The driver's identifier, registered for as long as the process lives: H5FD_close() gives back the
// file's reference to the driver and then calls it. Under an Hdf5Lock.
hid_t registered_driver() {
  static hid_t id = H5I_INVALID_HID;
  if (id < 0 || H5Iis_valid(id) <= 0) {
    const H5FD_class_t callbacks = driver_class();
    id = H5FDregister(&callbacks);
    if (id < 0) throw_hdf5("register the file driver", ErrorCode::io);
  }
  return id;
}

}  // namespace

H5File AddressDriver::create_file() {
  const H5Properties access(H5Pcreate(H5P_FILE_ACCESS), "make a property list");
  AddressDriver* const self = this;
  check_hdf5(H5Pset_driver(access.get(), registered_driver(), &self), "set the file driver");
  check_hdf5(H5Pset_libver_bounds(access.get(), H5F_LIBVER_V110, H5F_LIBVER_V110),
             "set the format version");
  // The first metadata block is the front; all others come after the data.
  check_hdf5(H5Pset_meta_block_size(access.get(), kFrontBytes), "set the metadata block size");
  check_hdf5(H5Pset_small_data_block_size(access.get(), 0), "set the small data block size");
  check_hdf5(H5Pset_cache(access.get(), 0, 0, 0, 0), "switch the chunk cache off");
  const H5Properties creation = hdf5_timeless(H5P_FILE_CREATE);
  return H5File(H5Fcreate("shardwise", H5F_ACC_TRUNC, creation.get(), access.get()),
                "make an HDF5 file");
}

void AddressDriver::check() const {
  if (failure_) std::rethrow_exception(failure_);
  if (next_ != HADDR_UNDEF) {
    throw Error(ErrorCode::io,
                "index data: HDF5 did not allocate at address " + std::to_string(next_));
  }
}

void AddressDriver::finish(H5File file) {
  file.close("close an HDF5 file");
  check();
}

void AddressDriver::append(const Hdf5Bytes& objects, std::uint64_t root) {
  tail_.insert(tail_.end(), objects.bytes().begin(), objects.bytes().end());
  set_hdf5_root(data_begin_ > 0 ? front_ : tail_, root, end());
}

std::uint64_t AddressDriver::allocate(H5FD_mem_t type, std::uint64_t size) {
  // Without a hole nothing is placed: the only raw data then is the heap that lists the sources of
  // virtual datasets.
  if (type == H5FD_MEM_DRAW && data_end_ > 0) {
    if (next_ == HADDR_UNDEF) fail("HDF5 allocates raw data that has no address");
    return std::exchange(next_, HADDR_UNDEF);
  }
  // From the first block on the file ends after the data: the library must not extend the front.
  if (end_ == 0 && size <= data_begin_) {
    end_ = data_end_;
    return 0;
  }
  const std::uint64_t address = (std::max(end_, data_end_) + 7) / 8 * 8;
  end_ = address + size;
  return address;
}

// Where the bytes of a metadata range are kept; null if it is not metadata's.
std::byte* AddressDriver::find(std::uint64_t address, std::size_t size) {
  if (address < data_begin_) {
    return size <= data_begin_ - address ? front_.data() + address : nullptr;
  }
  if (address < data_end_) return nullptr;
  const std::uint64_t begin = address - data_end_;
  if (tail_.size() < begin + size) tail_.resize(begin + size);
  return tail_.data() + begin;
}

void AddressDriver::write(std::uint64_t address, std::span<const std::byte> bytes) {
  std::byte* const to = find(address, bytes.size());
  if (to == nullptr) return fail("HDF5 writes metadata where data lies");
  std::memcpy(to, bytes.data(), bytes.size());
}

void AddressDriver::read(std::uint64_t address, std::span<std::byte> bytes) const {
  const auto copy = [&](const std::vector<std::byte>& part, std::uint64_t part_begin) {
    const std::uint64_t begin = std::max(address, part_begin);
    const std::uint64_t end = std::min(address + bytes.size(), part_begin + part.size());
    if (begin >= end) return;
    std::memcpy(bytes.data() + (begin - address), part.data() + (begin - part_begin), end - begin);
  };
  std::fill(bytes.begin(), bytes.end(), std::byte{0});
  copy(front_, 0);
  copy(tail_, data_end_);
}

void AddressDriver::fail(const char* what) {
  if (failure_) return;
  failure_ = std::make_exception_ptr(Error(ErrorCode::io, std::string("index data: ") + what));
}

}  // namespace shardwise::detail
