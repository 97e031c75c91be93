#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shardwise/loader/sources/file_options.h"
#include "shardwise/shard/dims.h"
#include "shardwise/shard/dtype.h"

namespace shardwise::detail {

/// The parts of FORMAT:PATHS?OPTION=VALUE&.. or PATHS?OPTION=VALUE&.., unescaped. Value type.
struct SourceText {
  std::string format;                                        ///< empty if it is not given
  std::vector<std::filesystem::path> paths;                  ///< one or more, none empty
  std::vector<std::pair<std::string, std::string>> options;  ///< in their order, names distinct

  /// Finds the format of the paths. Throws invalid_argument if it is unknown or they differ.
  void find_format();

  /// Puts the files that URLs stand for in the place of the URLs (remote_files).
  void expand();

  /// Removes an option and returns its value; absent if it is not given.
  std::optional<std::string> take(std::string_view name);

  /// As take(), for a count. Throws invalid_argument if the value is not a count.
  std::optional<std::int64_t> take_count(std::string_view name);

  /// The only path. Throws invalid_argument if there are several.
  const std::filesystem::path& path() const;

  /// Checks that no option is left. Throws invalid_argument, listing `known`.
  void finish(std::string_view known) const;

  /// Throws invalid_argument, naming the text and `found`.
  [[noreturn]] void fail(std::string_view found) const;

  std::string text;             ///< all of it, for messages
  IndexProgress progress = {};  ///< for the source's options
};

/// Throws invalid_argument.
SourceText parse_source_text(std::string_view text);

/// The type of a field: "i64", "u8[28,28]", "f32[]" (ragged), "text". Value type.
struct FieldType {
  std::optional<DType> dtype;  ///< absent for "?": found from the data
  std::optional<Shape> shape;  ///< absent if only the dtype is given
  bool ragged = false;         ///< its shape has 0 in dim 0
  bool text = false;           ///< u8, ragged
};

/// Throws invalid_argument.
FieldType parse_field_type(const SourceText& source, std::string_view field, std::string_view type);

}  // namespace shardwise::detail
