#include "shardwise/shard/dims.h"
