#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "shardwise/loader/source.h"
#include "shardwise/shard/error.h"

namespace shardwise {

struct PackOptions {
  std::string field = {};   ///< [length] of each record, ragged or not: a document's tokens
  std::int64_t window = 0;  ///< tokens of a pack

  /// The number of consecutive documents that are packed together, apart from all others. With more
  /// documents packs are fuller (98.2 % at 256, 99.2 % at 1,024, 99.5 % at 4,096 on text) but take
  /// longer to find again.
  std::int64_t documents = 1024;

  /// Token to put after each document.
  std::optional<std::int64_t> eos = {};

  /// Threads that ask for the lengths when the stage is made; each may block on files.
  int threads = 1;

  /// Called now and then while the lengths are read, one call at a time, on any of the threads. An
  /// exception from it ends the work.
  std::function<void(std::int64_t documents_done, std::int64_t documents)> progress = {};
};

/// Documents of any length as records of a fixed length, for language models. Every token comes
/// exactly once: documents longer than the window are first cut into pieces of its length, and
/// pieces are packed by best fit, longest first. A record has the fields
///
/// - "<field>" [window]: the tokens of the pieces, one after the other, then zeros;
/// - "<field>_segments" i32 [window]: 1 in the first piece, 2 in the second, .., 0 in the zeros;
/// - "<field>_positions" i32 [window]: the token's number within its document, also across its
///   pieces; 0 in the zeros.
///
/// The packs depend on lengths only. One number per `documents` is kept. The pieces of a pack are
/// computed again when it is read, and held for its neighbours, in at most 32 MiB. A box reads only
/// the tokens that it holds.
///
/// The packs are made of the source's epoch 0 with seed 0, and are the same in every epoch. A
/// shuffle() after this stage reorders them.
///
/// Throws invalid_argument if the source is null, the field does not have one dim or is over 2^31 -
/// 1 tokens long, an option is impossible, or there is no token; no_such_name for an unknown field;
/// unsupported if there is an eos and kernels cannot compute with the field's type. Errors of
/// length() pass through.
///
///   const auto packs = shuffle(pack(source, {.field = "text", .window = 8}));
std::shared_ptr<const Source> pack(std::shared_ptr<const Source> source, PackOptions options);

}  // namespace shardwise
