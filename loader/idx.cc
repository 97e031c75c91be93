#include "shardwise/loader/idx.h"
