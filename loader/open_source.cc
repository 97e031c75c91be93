#include "shardwise/loader/open_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "shardwise/loader/detail/files/input_file.h"
#include "shardwise/loader/detail/files/source_format.h"
#include "shardwise/loader/detail/files/source_text.h"
#include "shardwise/loader/detail/remote/remote_file.h"
#include "shardwise/loader/source.h"
#include "shardwise/loader/sources/arrays.h"
#include "shardwise/loader/sources/detail/open_files.h"
#include "shardwise/loader/sources/images.h"
#include "shardwise/loader/sources/text.h"
#include "shardwise/loader/sources/tfrecord.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/object/detail/parallel_requests.h"

namespace shardwise {
namespace {

using detail::FieldType;
using detail::parse_field_type;
using detail::SourceText;
using SourcePtr = std::shared_ptr<const Source>;

constexpr int kUrlsAtOnce = 16;  // a HEAD each, which waits for its answer

std::vector<std::shared_ptr<const detail::InputFile>> open_files(
    const std::vector<std::filesystem::path>& paths) {
  std::vector<std::shared_ptr<const detail::InputFile>> files(paths.size());
  const auto open_file = [&](std::size_t i) {
    files[i] = std::make_shared<const detail::InputFile>(paths[i]);
  };
  if (std::ranges::any_of(paths, detail::is_remote)) {
    detail::request_all(files.size(), kUrlsAtOnce, open_file);
  } else {
    for (std::size_t i = 0; i < files.size(); ++i) open_file(i);
  }
  return files;
}

/// Opens one source for each file by open(file, hold_bytes), and joins them one after the other.
/// Together they keep no more bytes than one would.
template <class Open>
SourcePtr open_each(const SourceText& text, Open&& open) {
  std::size_t hold_bytes = kDefaultHoldBytes;
  std::vector<SourcePtr> sources;
  sources.reserve(text.paths.size());
  for (std::shared_ptr<const detail::InputFile>& file : open_files(text.paths)) {
    const std::size_t bytes = file->size_bytes();
    sources.push_back(open(std::move(file), hold_bytes));
    if (bytes <= hold_bytes) hold_bytes -= bytes;
  }
  return concat(std::move(sources));
}

std::optional<bool> take_truth(SourceText& text, std::string_view name) {
  const auto value = text.take(name);
  if (!value) return std::nullopt;
  if (*value == "yes" || *value == "no") return *value == "yes";
  text.fail(fmt::format("{} is \"{}\", needed is \"yes\" or \"no\"", name, *value));
}

SourcePtr open_idx_text(SourceText& text, std::string_view known) {
  const std::string field = text.take("field").value_or("x");
  text.finish(known);
  return open_each(
      text, [&](auto file, std::size_t hold) { return detail::open_idx(file, field, hold); });
}

SourcePtr open_npy_text(SourceText& text, std::string_view known) {
  const std::string field = text.take("field").value_or("x");
  text.finish(known);
  return open_each(
      text, [&](auto file, std::size_t hold) { return detail::open_npy(file, field, hold); });
}

SourcePtr open_tokens_text(SourceText& text, std::string_view known) {
  TokenOptions options;
  if (const auto type = text.take("dtype")) {
    options.dtype = parse_field_type(text, "dtype", *type).dtype.value_or(DType::f64);
  }
  options.window = text.take_count("window").value_or(0);
  options.stride = text.take_count("stride").value_or(0);
  options.header_bytes = as_size(text.take_count("header_bytes").value_or(0));
  options.field = text.take("field").value_or("tokens");
  text.finish(known);
  return open_each(text, [&](auto file, std::size_t hold) {
    options.hold_bytes = hold;
    return detail::open_tokens(file, options);
  });
}

SourcePtr open_hdf5_text(SourceText& text, std::string_view) {
  Hdf5Options options;
  for (const auto& [field, dataset] : text.options) options.fields.push_back({field, dataset});
  return open_hdf5(text.paths, options);
}

// Looks at the ending before ".gz".
bool has_ending(const std::filesystem::path& of, std::string_view ending) {
  const std::filesystem::path path = detail::file_name_of(of);
  return path.extension() == ".gz" ? path.stem().extension() == ending : path.extension() == ending;
}

SourcePtr open_csv_text(SourceText& text, std::string_view) {
  CsvOptions options{.progress = text.progress};
  if (const auto delimiter = text.take("delimiter")) {
    if (*delimiter != "tab" && delimiter->size() != 1) {
      text.fail(
          fmt::format("delimiter is \"{}\", needed is one character, or \"tab\"", *delimiter));
    }
    options.delimiter = *delimiter == "tab" ? '\t' : (*delimiter)[0];
  } else if (has_ending(text.paths[0], ".tsv")) {
    options.delimiter = '\t';
  }
  options.header = take_truth(text, "header").value_or(true);
  for (const auto& [name, type] : text.options) {
    if ((name == "sep" || name == "separator") && (type.size() == 1 || type == "tab")) {
      text.fail(fmt::format("has an option \"{}\", needed is \"delimiter\"", name));
    }
    const FieldType field = parse_field_type(text, name, type);
    if (field.shape && !field.text) {
      text.fail(fmt::format("field \"{}\" has a shape, a column of a table has none", name));
    }
    options.fields.push_back(
        {.name = name, .dtype = field.text ? std::nullopt : field.dtype, .text = field.text});
  }
  return open_each(text, [&](auto file, std::size_t hold) {
    options.hold_bytes = hold;
    return detail::open_csv(file, options);
  });
}

SourcePtr open_jsonl_text(SourceText& text, std::string_view) {
  JsonlOptions options{.progress = text.progress};
  for (const auto& [name, type] : text.options) {
    const FieldType field = parse_field_type(text, name, type);
    // The largest extent of a ragged field is found from the data, and with it the rest of its
    // shape.
    options.fields.push_back({.name = name,
                              .dtype = field.dtype,
                              .shape = field.ragged ? std::nullopt : field.shape,
                              .ragged = field.ragged});
  }
  return open_each(text, [&](auto file, std::size_t hold) {
    options.hold_bytes = hold;
    return detail::open_jsonl(file, options);
  });
}

SourcePtr open_tfrecord_text(SourceText& text, std::string_view) {
  TfrecordOptions options{.progress = text.progress};
  for (const auto& [name, type] : text.options) {
    const FieldType field = parse_field_type(text, name, type);
    if (!field.dtype) text.fail(fmt::format("field \"{}\" has no type, needed is one", name));
    options.features.push_back({.name = name,
                                .dtype = *field.dtype,
                                .shape = field.shape.value_or(Shape()),
                                .ragged = field.ragged});
  }
  return open_tfrecord(text.paths, options);
}

ImageOptions image_options(SourceText& text, std::string_view known) {
  ImageOptions options;
  if (text.progress) {
    options.progress = [told = text.progress](std::int64_t entries) {
      told(static_cast<std::uint64_t>(entries), 0);
    };
  }
  options.height = text.take_count("height").value_or(0);
  options.width = text.take_count("width").value_or(0);
  options.channels = text.take_count("channels").value_or(options.channels);
  options.max_pixels = text.take_count("max_pixels").value_or(options.max_pixels);
  const std::string resize = text.take("resize").value_or("stretch");
  if (resize != "stretch" && resize != "crop") {
    text.fail(fmt::format("resize is \"{}\", needed is \"stretch\" or \"crop\"", resize));
  }
  options.exif_transpose = take_truth(text, "exif_transpose").value_or(false);
  options.resize = resize == "crop" ? ImageResize::crop : ImageResize::stretch;
  const std::string labels = text.take("labels").value_or("automatic");
  if (labels != "automatic" && labels != "none") {
    text.fail(fmt::format("labels is \"{}\", needed is \"automatic\" or \"none\"", labels));
  }
  options.labels = labels == "none" ? ImageLabels::none : ImageLabels::automatic;
  text.finish(known);
  return options;
}

SourcePtr open_images_text(SourceText& text, std::string_view known) {
  const ImageOptions options = image_options(text, known);
  return open_image_folder(text.path(), options);
}

SourcePtr open_tar_text(SourceText& text, std::string_view known) {
  const std::string extensions = text.take("bytes").value_or("");
  ImageOptions options = image_options(text, known);
  for (std::size_t begin = 0; begin < extensions.size();) {
    const std::size_t end = std::min(extensions.find(',', begin), extensions.size());
    options.byte_fields.push_back(extensions.substr(begin, end - begin));
    begin = end + 1;
  }
  std::vector<SourcePtr> sources;
  sources.reserve(text.paths.size());
  for (const std::filesystem::path& path : text.paths) {
    sources.push_back(open_image_tar(path, options));
  }
  return concat(std::move(sources));
}

constexpr std::string_view kImageOptions =
    "height, width, channels, resize, exif_transpose, labels, max_pixels";

struct SourceFormat {
  std::string_view name;
  std::string_view options;  // the known options, for messages; empty: options are names of fields
  SourcePtr (*open)(SourceText& text, std::string_view options);
};

constexpr std::array kSourceFormats{
    SourceFormat{"csv", "", open_csv_text},
    SourceFormat{"hdf5", "", open_hdf5_text},
    SourceFormat{"idx", "field", open_idx_text},
    SourceFormat{"images", kImageOptions, open_images_text},
    SourceFormat{"jsonl", "", open_jsonl_text},
    SourceFormat{"npy", "field", open_npy_text},
    SourceFormat{"tar",
                 "bytes, height, width, channels, resize, exif_transpose, labels, max_pixels",
                 open_tar_text},
    SourceFormat{"tfrecord", "", open_tfrecord_text},
    SourceFormat{"tokens", "dtype, window, stride, header_bytes, field", open_tokens_text},
};

}  // namespace

std::shared_ptr<const Source> open_source(std::string_view text, IndexProgress progress) {
  SourceText parts = detail::parse_source_text(text);
  parts.progress = std::move(progress);
  if (parts.format != "images") parts.expand();
  if (parts.format.empty()) parts.find_format();
  std::string known;
  for (const SourceFormat& format : kSourceFormats) {
    if (format.name == parts.format) return format.open(parts, format.options);
    known += fmt::format("{}{}", known.empty() ? "" : ", ", format.name);
  }
  parts.fail(
      fmt::format("there is no format \"{}\"; there are {}", parts.format.substr(0, 40), known));
}

std::shared_ptr<const Source> open_source(std::span<const std::string> texts) {
  std::vector<SourcePtr> sources;
  sources.reserve(texts.size());
  for (const std::string& text : texts) sources.push_back(open_source(text));
  return zip(std::move(sources));
}

}  // namespace shardwise
