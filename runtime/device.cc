#include "shardwise/runtime/device.h"
