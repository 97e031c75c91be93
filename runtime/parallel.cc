#include "shardwise/runtime/parallel.h"
