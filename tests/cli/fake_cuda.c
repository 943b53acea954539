// Stands in for libcuda.so.1 and libnvidia-ml.so.1 where `dymem doctor` is tested: what it says comes from FAKE_* in the
// environment. Nothing of it can be computed on.
#include <stdlib.h>
#include <string.h>
#include <stdio.h>

static int number(const char *name, int otherwise) {
  const char *text = getenv(name);
  return text ? atoi(text) : otherwise;
}

int cuInit(unsigned flags) { return number("FAKE_INIT", 0); }
int cuDriverGetVersion(int *version) { return *version = number("FAKE_VERSION", 13000), 0; }
int cuDeviceGetCount(int *count) { return *count = number("FAKE_COUNT", 1), 0; }
int cuDeviceGet(int *device, int index) { return *device = index, number("FAKE_OPEN", 0); }
int cuDeviceGetName(char *name, int length, int device) { return snprintf(name, length, "Fake card %d", device), 0; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { return *bytes = 80ul << 30, 0; }
int cuDeviceGetPCIBusId(char *id, int length, int device) { return snprintf(id, length, "0000:0%d:00.0", device), 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  switch (attribute) {
    case 20: *value = number("FAKE_MODE", 0); break;
    case 75: *value = 9; break;
    case 76: *value = 0; break;
    case 102: *value = number("FAKE_VMM", 1); break;
    case 103: *value = number("FAKE_POSIX", 1); break;
    default: return 1;
  }
  return 0;
}

struct prop { int type, handles, location, id; void *win32; unsigned char flags[8]; };
int cuMemGetAllocationGranularity(size_t *size, const struct prop *prop, int option) {
  if (prop->type != 1 || prop->location != 1 || prop->win32 || option != 0) return 1;
  return *size = 2ul << 20, 0;
}

int nvmlInit_v2(void) { return number("FAKE_NVML", 0); }
int nvmlSystemGetDriverVersion(char *text, unsigned length) { return snprintf(text, length, "580.1.2"), 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **device) {
  return *device = (void *)1, strncmp(id, "0000:0", 6) != 0;
}
int nvmlDeviceGetMigMode(void *device, unsigned *now, unsigned *later) {
  return *now = *later = number("FAKE_MIG", 0), number("FAKE_NO_MIG", 0);
}
struct bar1 { unsigned long long total, free, used; };
int nvmlDeviceGetBAR1MemoryInfo(void *device, struct bar1 *bar1) {
  return bar1->total = 128ull << 30, bar1->free = 1, bar1->used = 2, 0;
}
