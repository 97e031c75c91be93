#include "shardwise/runtime/gemm.h"
