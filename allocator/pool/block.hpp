// Blocks: ranges of addresses, handed to a caller or free. One record a block, addressed by number.
//
// Every byte of every granule lies in exactly one *home block*: home blocks tile the home addresses, linked in address
// order. A *stitched block* has its address in a region of views; the home blocks behind it are `lent` to it.
//
// Invariants (audit.cpp recounts them)
//   B1  prev/next are the neighbours in address order; neighbours touch (no gap), else the link is kNoBlock.
//   B2  A maximal sequence of free neighbours is a run. Its first block (head) knows run_size and the last (tail);
//       the tail knows the head. Only heads are in the free index.
//   B3  Neighbouring free blocks have different last uses, of which at least one was unfinished when they met.
//   B4  A stitched block's pieces are lent home blocks with owner = the stitched block, in address order of the region.
#pragma once
#include <cstdint>
#include <vector>

#include "base/units.hpp"
#include "pool/tag.hpp"
#include "stream/stream_table.hpp"

namespace dymem {

using BlockId = std::uint32_t;
constexpr BlockId kNoBlock = 0xffffffff;

enum class BlockKind : std::uint8_t {
  unused,    // record not in use
  free,      // home, in a run
  live,      // home, held by a caller
  pending,   // home, freed, waiting for work on other streams
  lent,      // home, behind a stitched block
  stitched,  // at an alias address, held by a caller
  stitched_pending,
  filler,  // home, what was free in a granule that fell asleep: hidden until it wakes (asleep.hpp)
};

// One cache line. What only one kind needs shares its place with what only another needs.
struct alignas(64) Block {
  Addr at = 0;
  Bytes size = 0;
  union {
    Bytes run_size = 0;          // free head: bytes of its run
    std::uint64_t trace_number;  // held: 1 + its number in the trace; 0 = not recorded
  };
  BlockId prev = kNoBlock, next = kNoBlock;
  union {
    BlockId run_end = kNoBlock;  // free: head -> tail, tail -> head
    BlockId owner;               // lent: the stitched block
    std::uint32_t region;        // stitched: region number
  };
  BlockId next_piece = kNoBlock;  // stitched: first piece; lent: next piece
  std::uint32_t uses = 0;         // held: 1 + index into the pool's record_stream lists; 0 = none
  LastUse last_use;               // free: who used it last; held: stream is the owner's
  std::uint16_t slack = 0;        // held: size - bytes asked for
  BlockKind kind = BlockKind::unused;
  std::uint8_t arena = 0;
  std::uint8_t mobility = 0;
  std::uint8_t pins = 0;
  Tag tag = kUntagged;  // held: what the caller said it is for
  bool is_free() const { return kind == BlockKind::free; }
  Bytes requested() const { return size - slack; }
};
static_assert(sizeof(Block) == 64);

class BlockTable {
 public:
  BlockId make() {
    if (!spare_.empty()) {
      BlockId id = spare_.back();
      spare_.pop_back();
      return id;
    }
    blocks_.emplace_back();
    if (spare_.capacity() < blocks_.capacity()) spare_.reserve(blocks_.capacity());
    return BlockId(blocks_.size() - 1);
  }
  void drop(BlockId id) {
    blocks_[id] = Block{};
    spare_.push_back(id);
  }
  Block& operator[](BlockId id) { return blocks_[id]; }
  const Block& operator[](BlockId id) const { return blocks_[id]; }
  std::size_t capacity() const { return blocks_.size(); }

 private:
  std::vector<Block> blocks_;
  std::vector<BlockId> spare_;
};

}  // namespace dymem
