#include "shardwise/shard/transfer_plan.h"
