#include "shardwise/shard/mesh.h"
