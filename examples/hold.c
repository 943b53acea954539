/* dymem from C: memory of the pools that serve PyTorch, under a name of one's own.
 *
 *   cc -std=c11 -I "$(python -c 'import dymem; print(dymem.include_path())')" examples/hold.c \
 *      "$(python -c 'import dymem; print(dymem.library_path())')" -Wl,-rpath,"$(python -c 'import dymem, os; print(os.path.dirname(dymem.library_path()))')" -o hold
 *   DYMEM_CONF=driver:emulated ./hold        # on a machine without a GPU; with one, just ./hold
 */
#include <dymem.h>
#include <inttypes.h>
#include <stdio.h>

static int failed(const char* what) {
  fprintf(stderr, "%s: %s\n", what, dymem_last_error());
  return 1;
}

int main(void) {
  void *weights = NULL, *too_much = NULL;
  dymem_memory_info info = {.struct_bytes = sizeof info};
  uint64_t held = 0, given_back = 0;

  if (dymem_abi() < DYMEM_ABI) return fprintf(stderr, "libdymem is older than dymem.h\n"), 1;
  if (dymem_hold(&weights, (size_t)64 << 20, 0, NULL, "example") != DYMEM_OK) return failed("hold");
  if (dymem_held(0, "example", &held) != DYMEM_OK) return failed("held");
  if (dymem_memory(0, &info) != DYMEM_OK) return failed("memory");
  printf("held %" PRIu64 ", live %" PRIu64 ", reserved %" PRIu64 "\n", held, info.live_bytes, info.reserved_bytes);

  /* What cannot be is a status and a sentence; the pool stays usable. */
  if (dymem_hold(&too_much, (size_t)1 << 45, 0, NULL, "example") != DYMEM_OUT_OF_MEMORY) return failed("too much");
  printf("refused: %s\n", dymem_last_error());

  if (dymem_use_on_stream(weights, NULL) != DYMEM_OK || dymem_release(weights) != DYMEM_OK) return failed("release");
  if (dymem_release(weights) != DYMEM_INVALID) return failed("a second release");
  printf("refused: %s\n", dymem_last_error());
  if (dymem_give_back(&given_back) != DYMEM_OK) return failed("give back");
  printf("given back %" PRIu64 "\n", given_back);
  return 0;
}
