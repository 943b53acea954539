// Blocks shared with other processes: handles out, mappings in. What torch.multiprocessing needs of an allocator.
//
//   H1  A handle is a string of bytes. Of the vmm backing it begins with "dymem": who shares it, a token, and the sizes
//       of the granules. Of the contiguous backing it is a plain CUDA IPC handle, which PyTorch's own allocator opens
//       too; and such a handle of PyTorch's (of memory that was not an expandable segment) is opened here.
//   H2  A receiver reserves the addresses of what is shared and no more. The same handle opened again on the same device
//       gives the same mapping; it goes when the last owner lets go of it.
//   H3  Memory is unmapped when the device has finished all work: PyTorch gives up a received tensor before it waits for
//       the streams that use it. During a capture, where nobody may wait, it is kept and unmapped later.
//   H4  What is mapped stays readable when the sender frees it or ends; what it reads then is up to the sender. PyTorch
//       counts receivers and keeps the sender's tensor for as long as they do.
//   H5  In a forked child nothing is shared, opened or closed.
// Mapped memory of other processes is not in any pool's figures; imports() shows it.
// Locks: one around opening (held while the sender is asked), one around the table of mappings. Never the pool's.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "driver/driver.hpp"

namespace dymem {

struct SharedHandle {
  std::string handle;
  Bytes offset = 0;  // of the block in what open_shared() maps
};

// For the block that begins at `address`; pins it until it is freed. Throws InvalidArgument if no pool holds it, Error.
SharedHandle share(Addr address);
// Maps what another process shared, for `device`. Throws InvalidArgument (not such a handle), Error (one sentence).
std::shared_ptr<void> open_shared(const std::string& handle, int device);

// The part of it that calls a driver, for tests of what happens when one fails: nothing is left. (address, bytes)
std::pair<Addr, Bytes> map_shared(Driver& driver, const std::string& handle);

struct Imports {
  Bytes bytes = 0;             // of other processes' memory that is mapped here
  std::uint64_t mappings = 0;  // handles that are open
  std::uint64_t waiting = 0;   // … of which nobody uses any more, but could not be unmapped yet
};
Imports imports(int device);

}  // namespace dymem
