// Sleeping: a pool gives physical memory back to the device and keeps every address; waking restores it there.
//
//   sleep  waits for all work of the device, copies what is to be kept to pinned host memory, unmaps every view, gives
//          the granules back. Idle granules go for good (as in trim). Blocks stay held at their addresses.
//   wake   creates granules, maps them at the same addresses, copies the contents back; what is captured replays.
//
//   W1  sleep() and wake() do all that was asked, or throw and leave the pool as it was; contents are never lost. Where
//       the driver fails in the middle and refuses the way back as well, the pool is asleep, its memory is still its
//       own, and wake() maps what is missing.
//   W2  Everything asleep: malloc throws SleepError, reserved is 0. Some granules asleep (by tag, or woken by tag): the
//       pool serves from the others; nothing of a sleeping granule is handed out.
//   W3  free() works while asleep: the block's bytes are pending until its granules wake, and are not restored.
//   W4  Sleeping twice and waking what is awake do nothing. Untagged blocks sleep only with everything, are dropped only
//       with everything, and wake with whatever wakes first.
//   W5  A granule sleeps by tag only if all that is held in it has one of the tags; the report says what stayed.
// Refused (SleepError, nothing changed): contiguous backing and debug mode, a capture under way, pinned blocks (others
// use their physical memory), too little host memory. Waking without memory on the device: OutOfMemory, still asleep.
// The pool's lock is held throughout; who asks must not enqueue work on sleeping memory until it is awake.
#pragma once
#include "base/units.hpp"
#include "pool/tag.hpp"

namespace dymem {

struct SleepRequest {
  bool everything = true;       // else: what has one of `tags`
  TagSet tags;
  bool keep_everything = true;  // else: what has one of `kept`, and what is untagged unless drop_untagged
  TagSet kept;
  bool drop_untagged = false;
};

struct WakeRequest {
  bool everything = true;  // else: what has one of `tags`, and what is untagged
  TagSet tags;
  bool undo = false;       // instead: what the last sleep() put to sleep, and no more
};

struct SleepReport {          // bytes and seconds
  bool changed = false;       // sleep: something fell asleep, or the pool as a whole did, if there was nothing in it
  Bytes memory = 0;           // given back to the device (sleep) or taken from it (wake)
  Bytes copied = 0;           // contents moved to or from the host
  Bytes dropped = 0;          // held blocks whose contents were given up (sleep)
  Bytes stayed = 0;           // blocks of the tags asked for that share a granule with others and stay awake (sleep)
  double seconds = 0;         // all of it
  double copy_seconds = 0;    // of it: copying
  double host_seconds = 0;    // of it: pinning host memory (sleep)
};

}  // namespace dymem
