// NVML, as far as torch, vLLM, Ray and our nvidia-smi ask.
#include <cstdio>
#include <cstring>

#include "machine.h"

using namespace fake;
using ull = unsigned long long;
constexpr const char *driver_version = "580.65.06";
constexpr int invalid_argument = 2, insufficient_size = 7;

static int index_of(void *handle) { return (int)(size_t)handle - 1; }
API int nvmlInit_v2() { return 0; }
API int nvmlInit() { return 0; }
API int nvmlInitWithFlags(unsigned) { return 0; }
API int nvmlShutdown() { return 0; }
API const char *nvmlErrorString(int error) { return error == not_supported ? last_missing() : error ? "error" : "success"; }
API int nvmlSystemGetDriverVersion(char *text, unsigned room) { return snprintf(text, room, "%s", driver_version), 0; }
API int nvmlSystemGetNVMLVersion(char *text, unsigned room) { return snprintf(text, room, "13.%s", driver_version), 0; }
API int nvmlSystemGetCudaDriverVersion(int *version) { return *version = 13000, 0; }
API int nvmlSystemGetCudaDriverVersion_v2(int *version) { return *version = 13000, 0; }
API int nvmlDeviceGetCount_v2(unsigned *count) { return *count = machine().num_devices, 0; }
API int nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }
API int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
  if ((int)index >= machine().num_devices) return invalid_argument;
  return *handle = (void *)(size_t)(index + 1), 0;
}
API int nvmlDeviceGetHandleByIndex(unsigned index, void **handle) { return nvmlDeviceGetHandleByIndex_v2(index, handle); }
API int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
  unsigned index = 0;
  if (strlen(uuid) < 2 || sscanf(uuid + strlen(uuid) - 2, "%x", &index) != 1) return invalid_argument;
  return nvmlDeviceGetHandleByIndex_v2(index, handle);
}
API int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **handle) {
  unsigned domain, number;
  if (sscanf(bus, "%x:%x", &domain, &number) != 2) return invalid_argument;
  return nvmlDeviceGetHandleByIndex_v2(number - 1, handle);
}
API int nvmlDeviceGetIndex(void *handle, unsigned *index) { return *index = index_of(handle), 0; }
API int nvmlDeviceGetName(void *, char *text, unsigned room) { return snprintf(text, room, "%s", machine().name.c_str()), 0; }
API int nvmlDeviceGetUUID(void *handle, char *text, unsigned room) {
  return snprintf(text, room, "GPU-00000000-0000-0000-0000-0000000000%02x", index_of(handle)), 0;
}
API int nvmlDeviceGetCudaComputeCapability(void *, int *major, int *minor) { return *major = machine().major, *minor = machine().minor, 0; }
struct Memory { ull total, free, used; };
API int nvmlDeviceGetMemoryInfo(void *handle, Memory *memory) {
  ull used = (ull)used_bytes(index_of(handle)), total = machine().memory_bytes;
  return *memory = {total, total - used, used}, 0;
}
struct Memory2 { unsigned version; ull total, reserved, free, used; };
API int nvmlDeviceGetMemoryInfo_v2(void *handle, Memory2 *memory) {
  Memory one;
  nvmlDeviceGetMemoryInfo(handle, &one);
  return memory->total = one.total, memory->reserved = 0, memory->free = one.free, memory->used = one.used, 0;
}
struct Process { unsigned pid; ull bytes; unsigned instance, compute_instance; };
API int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, Process *processes) {
  int pids[256];
  long long bytes[256];
  unsigned found = (unsigned)compute_processes(index_of(handle), pids, bytes, 256), room = *count;
  *count = found;
  if (found > room || (found && !processes)) return insufficient_size;
  for (unsigned i = 0; i < found; i++) processes[i] = {(unsigned)pids[i], (ull)bytes[i], 0xFFFFFFFF, 0xFFFFFFFF};
  return 0;
}
struct Process1 { unsigned pid; ull bytes; };
API int nvmlDeviceGetComputeRunningProcesses(void *handle, unsigned *count, Process1 *processes) {
  Process found[256];
  unsigned room = *count, number = 256;
  nvmlDeviceGetComputeRunningProcesses_v3(handle, &number, found);
  *count = number;
  if (number > room || (number && !processes)) return insufficient_size;
  for (unsigned i = 0; i < number; i++) processes[i] = {found[i].pid, found[i].bytes};
  return 0;
}
API int nvmlDeviceGetP2PStatus(void *, void *, int, int *status) { return *status = 0, 0; }
API int nvmlDeviceGetMigMode(void *, unsigned *now, unsigned *next) { return *now = *next = 0, 0; }
