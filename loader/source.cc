#include "shardwise/loader/source.h"
