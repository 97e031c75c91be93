#include "shardwise/shard/error.h"
