#include "shardwise/loader/loader.h"
