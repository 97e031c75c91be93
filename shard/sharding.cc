#include "shardwise/shard/sharding.h"
