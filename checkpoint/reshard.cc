#include "shardwise/checkpoint/reshard.h"
