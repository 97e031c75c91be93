#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "shardwise/checkpoint/save.h"
#include "shardwise/checkpoint/steps.h"

namespace shardwise::detail {

class Packer;
class Unpacker;

/// What all processes of a save must have given alike.
struct SaveTerms {
  std::int64_t step = 0;
  Codec codec = Codec::zstd;
  Existing existing = Existing::fail;
  std::int64_t writers = 1, processes_per_file = 1, devices = 0;
  std::int64_t copies = -1, processes_per_host = 0;     ///< of LocalRoots; -1: there are none
  std::uint64_t user = 0, objects = 0, resume_key = 0;  ///< hashes of the texts

  bool operator==(const SaveTerms&) const = default;
};

/// The terms of one process.
SaveTerms terms_of(std::int64_t step, const SaveOptions& options, std::int64_t devices,
                   const std::optional<LocalRoots>& local_roots, std::string_view resume_key);

/// The first term in which a rank differs from rank 0, in words; empty if there is none.
std::string difference(const SaveTerms& of_first, const SaveTerms& own, int rank);

void put(Packer& packer, const SaveTerms& terms);
SaveTerms take_terms(Unpacker& unpacker);

}  // namespace shardwise::detail
