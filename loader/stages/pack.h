#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "shardwise/loader/source.h"

namespace shardwise {

struct PackOptions {
  std::string field = {};   ///< [length] of each record, ragged or not: a document's tokens
  std::int64_t window = 0;  ///< tokens of a pack

  /// How many documents that follow one another are packed together, apart from all others. More
  /// fill better (98.2 % at 256, 99.2 % at 1,024, 99.5 % at 4,096 on text) and take longer to find
  /// again.
  std::int64_t documents = 1024;

  /// A token put after each document.
  std::optional<std::int64_t> eos = {};

  /// Threads that ask for the lengths when the stage is made; each may block on files.
  int threads = 1;

  /// Called now and then while the lengths are read, one call at a time, on any of the threads.
  /// What it throws ends the work.
  std::function<void(std::int64_t documents_done, std::int64_t documents)> progress = {};
};

/// Documents of any length as records of a fixed one, for language models. Every token comes
/// exactly once: documents longer than the window are cut into pieces of it first, and pieces are
/// laid together by best fit, longest first. A record has the fields
///
/// - "<field>" [window]: the tokens, of the pieces one after the other, then zeros;
/// - "<field>_segments" i32 [window]: 1 in the first piece, 2 in the second, .., 0 in the zeros;
/// - "<field>_positions" i32 [window]: the token's number within its document, going on where a
///   piece goes on; 0 in the zeros.
///
/// Only lengths are needed to know what is where. What is kept is one number per `documents`; which
/// pieces make a pack is computed again when it is read, and held for the packs beside it, in 32
/// MiB at most. A box reads only the tokens that it holds.
///
/// The packs are those of epoch 0 and seed 0 of the source, in every epoch: shuffle() after this
/// stage reorders them.
///
/// Throws invalid_argument where the source is null, the field is not of one dim or over 2^31 - 1
/// tokens long, an option is impossible, or there is no token; not_found for an unknown field;
/// unsupported where there is an eos and the field is of a type that is not computed with; and what
/// length() throws.
///
///   const auto packs = shuffle(pack(source, {.field = "text", .window = 8}));
std::shared_ptr<const Source> pack(std::shared_ptr<const Source> source, PackOptions options);

}  // namespace shardwise
