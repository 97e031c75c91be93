#include "shardwise/shard/box.h"
