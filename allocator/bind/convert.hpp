// Conversions that several bindings share. Every refusal is an InvalidArgument (dymem.errors.InvalidArgument in Python)
// of one sentence. Needs the GIL throughout.
#pragma once
#include <pybind11/pybind11.h>

#include <string>
#include <vector>

#include "base/event.hpp"
#include "pool/config.hpp"
#include "pool/pool.hpp"

namespace dymem {

// A Python int as a 64-bit number; negative or larger ones are refused, naming `what`.
std::uint64_t to_u64(const pybind11::handle& value, const char* what);
std::string to_text(const pybind11::handle& value, const char* what);

// Sets config's field `key` if there is one of that name; false if there is none.
bool set_pool_option(PoolConfig* config, const std::string& key, const pybind11::handle& value);
PoolConfig pool_config(const pybind11::dict& options);
const char* pool_option_names();

Mobility mobility_from(const std::string& name);
const char* mobility_name(Mobility mobility);

// {"allocation": {"all": {"current", "peak", "allocated", "freed"}, "small": …, "large": …}, …, "num_ooms": 0, …}
pybind11::dict stats_dict(const PoolStats& stats);
// {"2^9": 0.0, …, "2^46": 1.0}: the share of free bytes that a request of that size cannot use
pybind11::dict unusable_dict(const UnusableFree& unusable);

// Any contiguous bytes-like object whose length is a multiple of an event's.
std::vector<TraceEvent> events_from_buffer(const pybind11::buffer& buffer);
pybind11::bytes events_to_bytes(const std::vector<TraceEvent>& events);

}  // namespace dymem
