#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "shardwise/loader/detail/files/input_file.h"
#include "shardwise/loader/sources/arrays.h"
#include "shardwise/loader/sources/text.h"
#include "shardwise/loader/sources/tfrecord.h"

namespace shardwise::detail {

// The sources of loader/sources, made from an open file, such as one in memory.

std::shared_ptr<const Source> open_idx(std::shared_ptr<const InputFile> file,
                                       std::string field_name, std::size_t hold_bytes);
std::shared_ptr<const Source> open_tokens(std::shared_ptr<const InputFile> file,
                                          const TokenOptions& options);
std::shared_ptr<const Source> open_npy(std::shared_ptr<const InputFile> file,
                                       std::string field_name, std::size_t hold_bytes);
std::shared_ptr<const Source> open_csv(std::shared_ptr<const InputFile> file,
                                       const CsvOptions& options);
std::shared_ptr<const Source> open_jsonl(std::shared_ptr<const InputFile> file,
                                         const JsonlOptions& options);
std::shared_ptr<const Source> open_tfrecord(std::shared_ptr<const InputFile> file,
                                            const TfrecordOptions& options);

}  // namespace shardwise::detail
