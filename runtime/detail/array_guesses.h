#pragma once

namespace shardwise::first_guesses {

/// Methods of a ShardedArray by the names of other libraries; each comment has the code to write.
class OfArray {
 public:
  void size() const = delete;                // num_elements(shape())
  void numel() const = delete;               // num_elements(shape())
  void rank() const = delete;                // shape().size()
  void ndim() const = delete;                // shape().size()
  void num_shards() const = delete;          // shards().size()
  void addressable_shards() const = delete;  // shards()
  template <class T = void>
  void data() const = delete;  // to_vector<float>(), shard(i).data
  template <class T = void>
  void item() const = delete;                   // to_vector<float>().at(0)
  void operator[](const auto&) const = delete;  // shard(i), to_vector<float>()
  void to(const auto&...) const = delete;       // redistribute(devices, sharding)
  void reshard(const auto&...) const = delete;  // redistribute(devices, sharding)
  static void zeros(const auto&...) = delete;   // from_host(devices, spec, std::vector<float>(n))
  static void ones(const auto&...) = delete;  // from_host(devices, spec, std::vector<float>(n, 1))
};

}  // namespace shardwise::first_guesses
