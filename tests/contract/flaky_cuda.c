// Stands in for libcuda.so.1 where a test needs a driver that answers "unknown error" for a while: FLAKY_TIMES calls of
// FLAKY_CALL, the first after FLAKY_AFTER good ones, answer FLAKY_CODE; all those within FLAKY_SECONDS of the first, if
// that is set; with FLAKY_PLAIN what nobody else may open is granted all the same. Its memory is numbers; nothing can be
// read from it or written to it.
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int calls;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + 1e-9 * t.tv_nsec;
}

static int flaky(const char *call) {
  const char *which = getenv("FLAKY_CALL");
  if (!which || strcmp(which, call)) return 0;
  const int bad = calls++ - atoi(getenv("FLAKY_AFTER"));
  static double began;
  if (bad == 0) began = now();
  const char *seconds = getenv("FLAKY_SECONDS");
  const int lasts = seconds ? now() - began < atoi(seconds) : bad < atoi(getenv("FLAKY_TIMES"));
  return bad >= 0 && lasts ? atoi(getenv("FLAKY_CODE")) : 0;
}
int flaky_calls(void) { return calls; }

static unsigned long long next_address = 1ull << 40, next_handle = 1;

int cuDeviceGetCount(int *count) { return *count = 1, 0; }
int cuDeviceGet(int *device, int ordinal) { return *device = ordinal, 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) { return *value = attribute >= 102, 0; }
int cuGetErrorString(int error, const char **text) { return *text = "as the test wants it", 0; }
int cuCtxGetCurrent(void **context) { return *context = (void *)1, 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { return *context = (void *)1, 0; }
int cuMemGetInfo_v2(size_t *free, size_t *total) { return *free = *total = 80ul << 30, 0; }
int cuMemGetAllocationGranularity(size_t *size, const void *prop, int option) { return *size = 2ul << 20, 0; }
int cuMemAddressReserve(unsigned long long *at, size_t size, size_t alignment, unsigned long long hint,
                        unsigned long long flags) {
  *at = next_address, next_address += size;
  return 0;
}
int cuMemCreate(unsigned long long *handle, size_t size, const int *prop, unsigned long long flags) {
  const int plain = getenv("FLAKY_PLAIN") && prop[1] == 0;  // CUmemAllocationProp: type, handle types
  if (!plain && flaky("cuMemCreate")) return atoi(getenv("FLAKY_CODE"));
  return *handle = next_handle++, 0;
}
int cuMemMap(unsigned long long at, size_t size, size_t offset, unsigned long long handle, unsigned long long flags) {
  return flaky("cuMemMap");
}
int cuMemSetAccess(unsigned long long at, size_t size, const void *desc, size_t count) { return flaky("cuMemSetAccess"); }
int cuMemExportToShareableHandle(int *fd, unsigned long long handle, unsigned type, unsigned long long flags) {
  return *fd = 0, 0;
}

// Never asked for anything by these tests, or always content.
#define CONTENT(name) int name(void) { return 0; }
CONTENT(cuInit) CONTENT(cuDeviceCanAccessPeer) CONTENT(cuDevicePrimaryCtxRelease_v2) CONTENT(cuCtxPushCurrent_v2)
CONTENT(cuCtxPopCurrent_v2) CONTENT(cuMemAlloc_v2) CONTENT(cuMemFree_v2) CONTENT(cuMemGetAddressRange_v2)
CONTENT(cuIpcGetMemHandle) CONTENT(cuIpcOpenMemHandle_v2) CONTENT(cuIpcCloseMemHandle) CONTENT(cuMemcpyHtoD_v2)
CONTENT(cuMemcpyDtoH_v2) CONTENT(cuMemcpyHtoDAsync_v2) CONTENT(cuMemcpyDtoHAsync_v2) CONTENT(cuMemHostRegister_v2)
CONTENT(cuMemHostUnregister) CONTENT(cuMemHostAlloc) CONTENT(cuMemFreeHost) CONTENT(cuCtxSynchronize)
CONTENT(cuEventCreate) CONTENT(cuEventDestroy_v2) CONTENT(cuEventRecord) CONTENT(cuEventQuery)
CONTENT(cuEventSynchronize) CONTENT(cuStreamWaitEvent) CONTENT(cuStreamIsCapturing) CONTENT(cuMemAddressFree)
CONTENT(cuMemRelease) CONTENT(cuMemUnmap) CONTENT(cuMemGetAccess) CONTENT(cuMemImportFromShareableHandle)
