#include "shardwise/checkpoint/reader.h"
