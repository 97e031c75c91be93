#include "shardwise/checkpoint/detail/file.h"
