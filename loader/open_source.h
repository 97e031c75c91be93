#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "shardwise/loader/source.h"
#include "shardwise/loader/sources/file_options.h"
#include "shardwise/shard/error.h"

namespace shardwise {

/// Opens a source given as text: FORMAT:PATHS?OPTION=VALUE&OPTION=VALUE. FORMAT: may be left out
/// for a folder of images, and if the ending of a path (.csv, .tsv, .jsonl, .npy, .h5, .tar,
/// .tfrecord, -ubyte, and these with .gz) or its first bytes tell the format. Several paths, with
/// commas between them, are read one after the other. "%2c" and the like stand for characters with
/// a special meaning ("," "?" "&" "=" "%").
///
///     idx:images.gz?field=image                        field: "x", if it is not given
///     npy:images.npy?field=image
///     tokens:train.bin?dtype=u16&window=1025           also stride, header_bytes, field
///     hdf5:a.h5,b.h5?image=/images&label=/labels       field = dataset; none: all in the root
///     csv:table.csv?price=f32&rooms=i64&street=text    field = type; none: all columns
///                                                      also delimiter (a character, or "tab", as
///                                                      in files .tsv),
///                                                      header (yes, no)
///     jsonl:texts.jsonl?tokens=i32[]&label=i64         field = type; none: all of the first line
///     tfrecord:a.tfrecord?image=u8[28,28]&label=i64    field = type; none: "record", its bytes
///
///     images:FOLDER?height=64&width=64&channels=3      also resize (stretch, crop), labels
///                                                      (automatic, none), max_pixels,
///                                                      exif_transpose (yes, no)
///     tar:a.tar,b.tar?height=64&width=64               the same, and bytes=json,txt: members whose
///                                                      names end so are fields, as bytes
///
/// A type is a DType's name and a shape, if it is not a scalar; "[]" is a ragged list, "[,3]" a
/// ragged list of threes, "text" is "u8[]". In csv files a type has no shape. In csv and jsonl
/// files, the type "?" is found from the data.
///
/// `progress` is called while the file is indexed; for images it gets the number listed so far, of
/// 0, since their total is not known before.
///
/// Throws invalid_argument for a text of another form, naming the known formats or options; errors
/// of the source's own function pass through.
///
///   const auto tokens = open_source("tokens:train.bin?dtype=u16&window=1025");
std::shared_ptr<const Source> open_source(std::string_view text, IndexProgress progress = {});

/// Opens several sources and joins them side by side by zip(): images and labels in two files, say.
std::shared_ptr<const Source> open_source(std::span<const std::string> texts);

}  // namespace shardwise
