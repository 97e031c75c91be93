#include "shardwise/runtime/sharded_array.h"
