#include "shardwise/shard/box_copy.h"
