#include "shardwise/checkpoint/detail/codec.h"
