#include "shardwise/runtime/manual.h"
