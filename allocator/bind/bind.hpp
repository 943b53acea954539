// What each layer gives to Python: one function a layer, each in its own bind_<layer>.cpp, called by module.cpp.
// C++ exceptions become the classes of dymem.errors (see module.cpp), so the functions below need not translate any.
#pragma once
#include <pybind11/pybind11.h>

namespace dymem {

void bind_driver(pybind11::module_ m);                           // dymem._core.driver
void bind_pool(pybind11::module_ m);                             // dymem._core.pool
void bind_tagger(pybind11::module_ m);                           // dymem._core.pool.Tagger
void bind_period(pybind11::module_ m);                           // dymem._core.pool.PeriodFinder
void bind_trace(pybind11::module_ m, pybind11::module_ parent);  // dymem._core.trace, and replay() on _core itself
void bind_abi(pybind11::module_ m);                              // dymem._core.abi

}  // namespace dymem
