/* dymem for C, and for whatever can call C: memory from the same pools that serve PyTorch in this process.
 *
 *     cc -I "$(python -c 'import dymem; print(dymem.include_path())')" program.c "$(python -c 'import dymem; print(dymem.library_path())')"
 *
 * Every function that can fail returns a dymem_status; dymem_last_error() then has one sentence. All are thread safe, none
 * throws. Sizes are in bytes, devices are numbered from 0, a stream is a cudaStream_t or CUstream (NULL: the default
 * stream). The first use of a device makes its pool, with the configuration in DYMEM_CONF unless dymem_configure() or, in
 * Python, dymem.install() was called before. In a process that forked after such use, the child holds nothing.
 *
 * PyTorch itself needs none of this: dymem.install() makes dymem its allocator. (torch.cuda.memory.CUDAPluggableAllocator
 * loads dymem_malloc and dymem_free of the same library, the reduced route; they are not for C, since they throw.)
 */
#ifndef DYMEM_H
#define DYMEM_H

#include <stddef.h>
#include <stdint.h>

#define DYMEM_ABI 1 /* grows when something below changes or is added */

#if defined(__GNUC__)
#define DYMEM_API __attribute__((visibility("default")))
#else
#define DYMEM_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef enum dymem_status {
  DYMEM_OK = 0,
  DYMEM_OUT_OF_MEMORY = 1, /* the device or the limit has nothing left; the pool stays usable */
  DYMEM_INVALID = 2,       /* what was asked cannot be: an unknown address, a device that is not there, a wrong key */
  DYMEM_DRIVER = 3,        /* a call of the CUDA driver failed, or there is no driver */
  DYMEM_ASLEEP = 4,        /* the pool sleeps (dymem.sleep() in Python) */
  DYMEM_INTERNAL = 5       /* a broken invariant of dymem's own: please report it */
} dymem_status;

typedef struct dymem_memory_info {
  uint64_t struct_bytes;        /* set by the caller to sizeof(dymem_memory_info) */
  uint64_t live_bytes;          /* held by callers, PyTorch among them */
  uint64_t pending_bytes;       /* freed, still needed by work on some stream */
  uint64_t reserved_bytes;      /* what the pool holds of the device */
  uint64_t reserved_peak_bytes;
  uint64_t limit_bytes;         /* 0: none */
} dymem_memory_info;

/* The DYMEM_ABI that the library was built with. */
DYMEM_API int dymem_abi(void);

/* The sentence of this thread's last failure; "" before one. Valid until the thread's next failure. */
DYMEM_API const char* dymem_last_error(void);

/* "key:value,key:value" with the keys of dymem.Config, for example "limit:20GiB"; before the first use. */
DYMEM_API dymem_status dymem_configure(const char* configuration);

/* Memory for work enqueued on `stream` from now on. `holder` is who asks, for statistics: dymem.memory_stats() shows it as
 * held_bytes.HOLDER. 0 bytes give NULL. */
DYMEM_API dymem_status dymem_hold(void** address, size_t bytes, int device, void* stream, const char* holder);

/* Gives back what dymem_hold gave: work enqueued on its stream until now may still use it. NULL is fine. */
DYMEM_API dymem_status dymem_release(void* address);

/* Work on another stream uses it too: after its release it is reused only when what is enqueued there by then is done. */
DYMEM_API dymem_status dymem_use_on_stream(void* address, void* stream);

/* Gives idle memory of all devices back to them; `given_back_bytes` may be NULL. */
DYMEM_API dymem_status dymem_give_back(uint64_t* given_back_bytes);

/* Zeros before the device's first use. */
DYMEM_API dymem_status dymem_memory(int device, dymem_memory_info* info);

/* What one holder holds of a device. */
DYMEM_API dymem_status dymem_held(int device, const char* holder, uint64_t* bytes);

#ifdef __cplusplus
}
#endif
#endif
