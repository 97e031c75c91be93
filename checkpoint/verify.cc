#include "shardwise/checkpoint/verify.h"
