#include "bindings.h"
#include "gil.h"

NB_MODULE(_core, module) {
  using namespace shardwise::python;
  module.doc() = "What shardwise does in C++; use the package shardwise, not this.";
  bind_gil(module);
  bind_errors(module);
  bind_parts(module);
  bind_save(module);
  bind_read(module);
  bind_sharding(module);
  bind_compare(module);
  bind_convert(module);
  bind_loader(module);
  bind_calls(module);
  bind_tiers(module);
  bind_verify(module);
  bind_programs(module);
}
