#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "shardwise/loader/source.h"
#include "shardwise/loader/sources/file_options.h"
#include "shardwise/shard/error.h"

namespace shardwise {

/// A field made from a feature of tf.train.Example. A list of int64 becomes any type that holds its
/// values; a list of floats becomes f64, f32, f16 or bf16; a list of one byte string becomes its
/// bytes, or the elements of `dtype` that the bytes encode (tf.io.decode_raw, little-endian).
struct TfFeature {
  std::string name;  ///< of the field and of the feature
  DType dtype;
  Shape shape = {};

  /// Records differ in dim 0, and shape[0] is the largest extent; if it is 0, it is found by
  /// reading all records when the file is opened.
  bool ragged = false;
};

struct TfrecordOptions {
  /// If empty, there is one field "record", u8 and ragged: the bytes of each record as they are.
  std::vector<TfFeature> features = {};

  std::size_t hold_bytes = kDefaultHoldBytes;  ///< of all files together
  IndexProgress progress = {};                 ///< of each file
};

/// Opens TFRecord files, one after the other: frames of length, checksum, data, checksum. All
/// lengths are read and checked when a file is opened, and 8 bytes per record are kept; data is
/// checked when it is read.
///
/// Throws invalid_argument for impossible options and if there is no file; not_found; io;
/// corrupt if a length's checksum is wrong or the file ends within its first record. If the file
/// ends within a later record, if data has a wrong checksum, or if an example lacks a feature or
/// has another number of values, reading the record throws, naming record and offset. A gzip file
/// is unpacked into memory.
///
///   const auto images = open_tfrecord({"train-0.tfrecord", "train-1.tfrecord"}, {.features = {
///       {.name = "image", .dtype = DType::u8, .shape = {28, 28}},
///       {.name = "label", .dtype = DType::i64}}});
std::shared_ptr<const Source> open_tfrecord(const std::vector<std::filesystem::path>& paths,
                                            const TfrecordOptions& options = {});

}  // namespace shardwise
