#include "bindings.h"
#include "gil.h"

NB_MODULE(core_of_main, module) {
  using namespace shardwise::python;
  module.doc() = "What shardwise does in C++; use the package shardwise, not this.";
  bind_gil(module);
  bind_errors(module);
  bind_parts(module);
  bind_save(module);
  bind_save_turns(module);
  bind_read(module);
  bind_sharding(module);
  bind_compare(module);
  bind_convert(module);
  bind_loader(module);
  bind_calls(module);
  bind_tiers(module);
  bind_verify(module);
  bind_bucket(module);
  bind_programs(module);
}

namespace {

int (*exec_of_nanobind)(PyObject*) = nullptr;

// nanobind has one state for the process: another interpreter's would replace the main one's.
int exec_in_main(PyObject* module) {
  if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
    PyErr_SetString(PyExc_ImportError,
                    "import shardwise: found a subinterpreter, needed is the main interpreter");
    return -1;
  }
  return exec_of_nanobind(module);
}

}  // namespace

extern "C" NB_EXPORT PyObject* PyInit__core() {
  PyObject* const definition = PyInit_core_of_main();
  if (definition == nullptr || exec_of_nanobind != nullptr) return definition;
  PyModuleDef_Slot* slot = reinterpret_cast<PyModuleDef*>(definition)->m_slots;
  while (slot->slot != Py_mod_exec) ++slot;
  exec_of_nanobind = reinterpret_cast<int (*)(PyObject*)>(slot->value);
  slot->value = reinterpret_cast<void*>(&exec_in_main);
  return definition;
}
