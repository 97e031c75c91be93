// HDF5 filter 32015, zstd, as a plugin: with the folder of this library in HDF5_PLUGIN_PATH, h5py,
// h5dump and h5repack read compressed checkpoints. Debian ships no such filter.

#include <H5PLextern.h>
#include <hdf5.h>
#include <zstd.h>

#include <cstdint>
#include <cstdlib>

namespace {

// One-shot frames with their content size, nothing else: that is what checkpoints hold. 0 fails.
size_t decompress(size_t bytes, size_t* buffer_bytes, void** buffer) {
  const unsigned long long content = ZSTD_getFrameContentSize(*buffer, bytes);
  if (content == ZSTD_CONTENTSIZE_ERROR || content == ZSTD_CONTENTSIZE_UNKNOWN) return 0;
  if (content == 0 || content > UINT32_MAX) return 0;
  void* const out = std::malloc(content);
  if (out == nullptr) return 0;
  if (ZSTD_decompress(out, content, *buffer, bytes) != content) {
    std::free(out);
    return 0;
  }
  std::free(*buffer);
  *buffer = out;
  *buffer_bytes = content;
  return content;
}

size_t compress(int level, size_t bytes, size_t* buffer_bytes, void** buffer) {
  const size_t bound = ZSTD_compressBound(bytes);
  void* const out = std::malloc(bound);
  if (out == nullptr) return 0;
  const size_t size = ZSTD_compress(out, bound, *buffer, bytes, level);
  if (ZSTD_isError(size) != 0) {
    std::free(out);
    return 0;
  }
  std::free(*buffer);
  *buffer = out;
  *buffer_bytes = bound;
  return size;
}

size_t filter(unsigned flags, size_t num_values, const unsigned values[], size_t bytes,
              size_t* buffer_bytes, void** buffer) {
  if ((flags & H5Z_FLAG_REVERSE) != 0) return decompress(bytes, buffer_bytes, buffer);
  const int level = num_values > 0 ? static_cast<int>(values[0]) : ZSTD_CLEVEL_DEFAULT;
  return compress(level, bytes, buffer_bytes, buffer);
}

constexpr H5Z_class2_t kFilter = {H5Z_CLASS_T_VERS, 32015, 1, 1, "zstd", nullptr, nullptr, filter};

}  // namespace

H5PL_type_t H5PLget_plugin_type() { return H5PL_TYPE_FILTER; }
const void* H5PLget_plugin_info() { return &kFilter; }
