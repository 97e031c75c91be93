#include "shardwise/checkpoint/manager.h"
