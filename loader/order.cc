#include "shardwise/loader/order.h"
