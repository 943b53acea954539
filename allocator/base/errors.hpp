// Errors. Three kinds, never mixed (SleepError is of the first):
//   - a caller's mistake (unknown address, absurd size): InvalidArgument, one sentence that says what to do;
//   - exhaustion: OutOfMemory, with every figure that explains it; the pool stays usable;
//   - a driver call that failed: DriverError, with the call's name and code.
// A broken invariant of our own is none of these: DYMEM_CHECK aborts the operation with an InternalError.
#pragma once
#include <stdexcept>
#include <string>

#include "base/units.hpp"

namespace dymem {

class Error : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

class InvalidArgument : public Error {
  using Error::Error;
};

class InternalError : public Error {
  using Error::Error;
};

class DriverError : public Error {
 public:
  DriverError(const char* call, int code, const std::string& detail);
  const char* call;
  int code;
};

// What a sleeping pool, or one that cannot sleep, does not do.
class SleepError : public Error {
  using Error::Error;
};

struct OutOfMemoryFigures {
  Bytes requested = 0;     // bytes asked for
  Bytes live = 0;          // held by callers
  Bytes pending = 0;       // freed, still needed by work on some stream
  Bytes reserved = 0;      // physical bytes the pool holds
  Bytes private_pools = 0;  // held beside the pool for CUDA graphs and MemPool; the limit covers both
  Bytes limit = 0;         // bytes the pool may hold; 0 = no limit set
  Bytes largest_free = 0;  // largest block that could be had without growing
  Bytes device_free = 0;   // what the driver says is free on the device
  Bytes device_total = 0;
  int device = 0;
  double overhead = 0;  // reserved peak / occupied peak - 1
  Bytes shared = 0;     // of granules that other processes or libraries may use: they stay where they are
  bool joins = true;    // does the pool join granules that lie apart? (not with alias:off, nor in slabs)
  bool kept = false;    // … or no more, since memory was registered with a tracker
  bool apart = false;   // debug:on, where every block has granules of its own
};

class OutOfMemory : public Error {
 public:
  explicit OutOfMemory(const OutOfMemoryFigures& figures);  // composes the sentence users see
  OutOfMemory(const OutOfMemoryFigures& f, const std::string& sentence) : Error(sentence), figures(f) {}
  OutOfMemoryFigures figures;
};

// What users see: every figure, and the next step that these figures suggest.
std::string out_of_memory_sentence(const OutOfMemoryFigures& figures);

// "1.50 GiB", "12.0 MiB", "512 B": for sentences, never for parsing.
std::string human_bytes(Bytes n);
// "0x7f12a0000000": an address, as debuggers and CUDA's own messages write it.
std::string human_address(Addr at);

[[noreturn]] void check_failed(const char* file, int line, const char* what, const std::string& values);

}  // namespace dymem

// Always on: the cost is a predictable branch. For invariants whose breach would corrupt users' data.
#define DYMEM_CHECK(cond, values)                                                                 \
  do {                                                                                            \
    if (__builtin_expect(!(cond), 0)) ::dymem::check_failed(__FILE__, __LINE__, #cond, (values)); \
  } while (0)

// Debug builds only (the sanitizer builds define DYMEM_DEBUG).
#ifdef DYMEM_DEBUG
#define DYMEM_DCHECK(cond, values) DYMEM_CHECK(cond, values)
#else
#define DYMEM_DCHECK(cond, values) ((void)0)
#endif
