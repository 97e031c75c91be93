#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "shardwise/loader/source.h"

namespace shardwise {

/// Random numbers of one stage for one sample. They are a function of (seed, epoch, record, stage)
/// alone: no state is shared, so threads, meshes and resumes do not change them.
///
/// Philox4x32-10 (shard/host/random.h). It was chosen over splitmix64, which would suffice for one
/// stream, because its counter is certain to keep samples apart: the key is made of seed, epoch and
/// stage, the counter is (record, block), and a key maps counters to blocks one to one.
///
/// Value type, thread-compatible: a copy continues where the original stands.
///
///   SampleRandom random({.record = 7, .epoch = 2, .seed = 1}, stage_number("flip"));
///   random.below(10);                 // 8
///   random.uniform() < 1;
class SampleRandom {
 public:
  SampleRandom(const Sample& sample, std::uint64_t stage);

  /// 64 random bits.
  std::uint64_t next();

  /// A number in 0 .. n-1, each equally likely (Lemire, "Fast random integer generation in an
  /// interval", 2019). Requires n >= 1.
  std::uint64_t below(std::uint64_t n);

  /// A number 0 <= x < 1, a multiple of 2^-53.
  double uniform();

  /// Normal with mean 0 and standard deviation 1 (Box and Muller, 1958; two draws each). It uses
  /// the C library's logarithm and cosine, so the last bit may differ between libraries.
  double normal();

 private:
  std::array<std::uint32_t, 2> key_;
  std::uint64_t record_, block_ = 0;
  std::uint64_t spare_ = 0;  // the second half of the block before block_
  bool has_spare_ = false;
};

/// A stage's number, from its name: streams of equal name draw equal numbers.
std::uint64_t stage_number(std::string_view name);

}  // namespace shardwise
