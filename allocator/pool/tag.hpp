// Tags: what a block is for ("weights", "kv_cache"), so that sleeping and waking can tell one kind from another.
//
// A thread has a current tag, which every block it is handed carries until it is freed; 0 means untagged. Names are the
// process's: tag_number() gives each a number for good. Other threads (autograd's among them) do not inherit a tag.
// Cost: malloc reads a thread-local byte. Locks: one around the names, never taken by malloc.
#pragma once
#include <bitset>
#include <cstdint>
#include <string>

namespace dymem {

using Tag = std::uint8_t;
constexpr Tag kUntagged = 0;
using TagSet = std::bitset<256>;

// Static storage of this library's own: no call on the way to it.
extern thread_local constinit Tag current_tag __attribute__((tls_model("initial-exec")));

Tag tag_number(const std::string& name);  // the name's number, made at first use; InvalidArgument after 255 names
Tag set_current_tag(Tag tag);             // of this thread; returns what it was

}  // namespace dymem
