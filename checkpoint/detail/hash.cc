#include "shardwise/checkpoint/detail/hash.h"
