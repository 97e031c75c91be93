#include "shardwise/checkpoint/detail/manifest.h"
