#include "shardwise/checkpoint/info.h"
