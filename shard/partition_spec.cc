#include "shardwise/shard/partition_spec.h"
