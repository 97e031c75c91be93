#pragma once

#include <cstddef>

#include "shardwise/runtime/kernels/detail/shard_view.h"

namespace shardwise::detail {

/// Memory for the duration of a kernel, aligned to 64 bytes, its content unspecified. The thread
/// keeps it for later kernels, since fresh memory is expensive: each page is a fault.
///
/// Belongs to the thread that made it.
class Scratch {
 public:
  explicit Scratch(std::size_t bytes);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  std::byte* data() const { return data_; }

  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  std::byte* data_;
  std::size_t bytes_;
};

/// An f16 or bf16 shard as f32.
class Widened {
 public:
  explicit Widened(const ConstShardView& half);

  const ConstShardView& view() const { return view_; }

 private:
  Scratch memory_;
  ConstShardView view_;
};

/// An f16 or bf16 shard that is computed in f32 and then rounded.
class Unrounded {
 public:
  explicit Unrounded(const ShardView& half);

  const ShardView& view() const { return view_; }

  /// Rounds the result into the shard.
  void round() const;

 private:
  Scratch memory_;
  ShardView half_, view_;
};

}  // namespace shardwise::detail
