#include <iostream>

#include "shardwise/shard/sharding.h"

// Needs no library but shardwise::shard.
int main() {
  using namespace shardwise;
  const Sharding sharding(Mesh::parse("data=4,model=2"), PartitionSpec::parse("data,model"));
  std::cout << to_string(sharding.box(5, {10, 6})) << '\n';
  return sharding.box(5, {10, 6}) == Box({6, 3}, {9, 6}) ? 0 : 1;
}
