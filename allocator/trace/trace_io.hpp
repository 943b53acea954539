// dymem's own trace file: what a recorder held, in a form that says what it is.
//
//   bytes 0..7    "DYMEMTRC"
//         8..11   version (kTraceVersion)
//        12..15   0x01020304 as the writing machine stores it
//        16..19   bytes of this header (72)      20..23  bytes of one event (40)
//        24..31   number of events               32..39  events dropped before the first
//        40..47   the device's granularity       48..51  device      52..63  zero
//        64..71   64-bit FNV-1a over the 8-byte words of bytes 0..63 and of all events
//        72..     the events, as TraceEvent lies in memory
//
// read_trace() takes nothing on trust: the size must fit the header and the checksum the bytes before a single event is
// handed out; every refusal is an InvalidArgument of one sentence. write_trace() writes beside the target and renames,
// so that a full disk or an interrupt leaves no half file. No locks: files are the caller's.
#pragma once
#include <string>
#include <vector>

#include "base/errors.hpp"
#include "base/event.hpp"

namespace dymem {

constexpr std::uint32_t kTraceVersion = 1;

struct Trace {
  int device = 0;
  Bytes granularity = kGranuleUnit;
  std::uint64_t dropped = 0;
  std::vector<TraceEvent> events;
};

Trace read_trace(const std::string& path);
void write_trace(const std::string& path, const Trace& trace);

// Is this the beginning of one of our files? For choosing a reader; needs 8 bytes.
bool is_trace_magic(const void* bytes, std::uint64_t n);

}  // namespace dymem
