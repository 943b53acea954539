// Which blocks are exported, and the granules that other processes may ask for.
//
//   E1  An exported block is held and pinned once more than its owners pinned it, until it is freed: nothing of its
//       granules is stitched, moved, put to sleep or given back.
//   E2  A token names the same granules until the last exported block in them is freed; then nothing. Tokens are random
//       and never used again.
// Lock: the pool's. Costs nothing until something is exported; a free looks here only for pinned blocks.
#pragma once
#include <map>
#include <unordered_map>
#include <vector>

#include "pool/block.hpp"
#include "pool/exported_memory.hpp"

namespace dymem {

class Exports {
 public:
  // Of a block with this memory; the same token each time. Throws Error if the system gives no random bytes.
  const ExportToken& add(BlockId block, Bytes size, const std::vector<Handle>& granules);
  bool has(BlockId block) const { return blocks_.count(block) != 0; }
  void remove(BlockId block);  // freed; not exported is fine
  const std::vector<Handle>* granules(const ExportToken& token) const;  // nullptr: no such token (any more)
  Bytes bytes() const { return bytes_; }  // of the exported blocks

 private:
  struct Shared {
    ExportToken token;
    std::size_t blocks = 0;
  };
  struct Exported {
    Bytes size = 0;
    std::map<std::vector<Handle>, Shared>::iterator memory;
  };
  std::map<std::vector<Handle>, Shared> memory_;
  std::map<ExportToken, const std::vector<Handle>*> tokens_;
  std::unordered_map<BlockId, Exported> blocks_;
  Bytes bytes_ = 0;
};

}  // namespace dymem
