#include "shardwise/shard/dtype.h"
