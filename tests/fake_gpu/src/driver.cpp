// libcuda: contexts, virtual memory (vLLM's sleep mode), and entry points by name. Modules load, their kernels fail with their names.
#include <cuda.h>

#include <cstring>
#include <map>
#include <mutex>

#include <sys/mman.h>
#include <unistd.h>

#include "machine.h"

using namespace fake;
using ull = unsigned long long;
extern "C" int cudaMemGetInfo(size_t *, size_t *);

API CUresult cuDriverGetVersion(int *version) { return *version = CUDA_VERSION, CUDA_SUCCESS; }
API CUresult cuDeviceGetCount(int *count) { return *count = num_visible(), CUDA_SUCCESS; }
API CUresult cuDeviceGet(CUdevice *device, int index) { return *device = index, index < num_visible() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE; }
API CUresult cuDeviceGetName(char *text, int room, CUdevice) { return snprintf(text, room, "%s", machine().name.c_str()), CUDA_SUCCESS; }
API CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute number, CUdevice) { return *value = attribute(number), CUDA_SUCCESS; }
API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice) { return *bytes = machine().memory_bytes, CUDA_SUCCESS; }
API CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
  *uuid = {};
  uuid->bytes[15] = (char)physical(device);
  return CUDA_SUCCESS;
}

// A context is its device's number plus one.
static CUcontext context_of(int device) { return (CUcontext)(size_t)(device + 1); }
API CUresult cuCtxGetCurrent(CUcontext *context) { return *context = context_of(current), CUDA_SUCCESS; }
API CUresult cuCtxSetCurrent(CUcontext context) { return current = context ? (int)(size_t)context - 1 : 0, CUDA_SUCCESS; }
API CUresult cuCtxGetDevice(CUdevice *device) { return *device = current, CUDA_SUCCESS; }
API CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) { return *context = context_of(device), CUDA_SUCCESS; }
API CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned *flags, int *is_active) { return *flags = 0, *is_active = 1, CUDA_SUCCESS; }

API CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total) { return (CUresult)cudaMemGetInfo(free_bytes, total); }
API CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes) { return (CUresult)allocate((void **)address, bytes); }
API CUresult cuMemFree_v2(CUdeviceptr address) { return synchronize_all(), (CUresult)release((void *)address); }
API CUresult cuPointerGetAttribute(void *value, CUpointer_attribute which, CUdeviceptr address) {
  Block block;
  bool is_device = find_block((void *)address, &block, nullptr);
  if (which == CU_POINTER_ATTRIBUTE_MEMORY_TYPE && is_device) return *(unsigned *)value = CU_MEMORYTYPE_DEVICE, CUDA_SUCCESS;
  if (which == CU_POINTER_ATTRIBUTE_DEVICE_POINTER && is_device) return *(CUdeviceptr *)value = address, CUDA_SUCCESS;
  return is_device ? (CUresult)missing("cuPointerGetAttribute of this attribute") : CUDA_ERROR_INVALID_VALUE;
}

// ---- virtual memory: addresses without memory, memory without addresses, and mappings. An address without memory cannot be read.
struct Chunk {
  size_t size;
  int physical;
  int64_t offset;
  int uses;  // its handle, and each mapping
};
static std::mutex chunks_mutex;
static std::map<CUdeviceptr, Chunk *> mappings;
static void drop_use(Chunk *chunk) {
  if (--chunk->uses) return;
  drop_extent(chunk->offset, chunk->size);
  reserve(chunk->physical, -(long long)chunk->size);
  delete chunk;
}
constexpr size_t granularity = 2 << 20;
API CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *, CUmemAllocationGranularity_flags) { return *bytes = granularity, CUDA_SUCCESS; }
API CUresult cuMemAddressReserve(CUdeviceptr *address, size_t bytes, size_t, CUdeviceptr, ull) {
  void *room = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  return *address = (CUdeviceptr)room, CUDA_SUCCESS;
}
API CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) { return munmap((void *)address, bytes) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS; }
API CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *properties, ull) {
  if (bytes % granularity) return CUDA_ERROR_INVALID_VALUE;
  int device = physical(properties->location.id);
  if (!reserve(device, (long long)bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  return *handle = (ull) new Chunk{bytes, device, new_extent(bytes), 1}, CUDA_SUCCESS;
}
API CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  std::lock_guard<std::mutex> guard(chunks_mutex);
  return drop_use((Chunk *)handle), CUDA_SUCCESS;
}
API CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, ull) {
  Chunk *chunk = (Chunk *)handle;
  std::lock_guard<std::mutex> guard(chunks_mutex);
  if (offset || bytes != chunk->size || mappings.count(address)) return CUDA_ERROR_INVALID_VALUE;
  if (!map_extent((void *)address, bytes, chunk->offset)) return CUDA_ERROR_INVALID_VALUE;
  mappings[address] = chunk;
  chunk->uses++;
  add_block((void *)address, {bytes, chunk->physical, chunk->offset, getpid(), false, false});
  return CUDA_SUCCESS;
}
API CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  synchronize_all();
  std::lock_guard<std::mutex> guard(chunks_mutex);
  auto found = mappings.find(address);
  if (found == mappings.end() || found->second->size != bytes) return CUDA_ERROR_INVALID_VALUE;
  forget_block((void *)address);
  mmap((void *)address, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  drop_use(found->second);
  mappings.erase(found);
  return CUDA_SUCCESS;
}
API CUresult cuMemSetAccess(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t) { return CUDA_SUCCESS; }

// ---- modules: a function keeps the name of its kernel
API CUresult cuModuleLoadData(CUmodule *module, const void *) { return *module = (CUmodule) new int, CUDA_SUCCESS; }
API CUresult cuModuleLoadDataEx(CUmodule *module, const void *, unsigned, CUjit_option *, void **) { return *module = (CUmodule) new int, CUDA_SUCCESS; }
API CUresult cuModuleGetFunction(CUfunction *function, CUmodule, const char *name) { return *function = (CUfunction)strdup(name), CUDA_SUCCESS; }
API CUresult cuLibraryLoadData(CUlibrary *library, const void *, CUjit_option *, void **, unsigned, CUlibraryOption *, void **, unsigned) { return *library = (CUlibrary) new int, CUDA_SUCCESS; }
API CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary, const char *name) { return *kernel = (CUkernel)strdup(name), CUDA_SUCCESS; }
API CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel) { return *function = (CUfunction)kernel, CUDA_SUCCESS; }
API CUresult cuLaunchKernel(CUfunction function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **) {
  return (CUresult)missing((const char *)function);
}
API CUresult cuGetErrorString(CUresult error, const char **text) {
  *text = error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : error == CUDA_ERROR_NOT_SUPPORTED ? last_missing() : error ? "error" : "no error";
  return CUDA_SUCCESS;
}
API CUresult cuGetErrorName(CUresult error, const char **text) {
  *text = error == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : error == CUDA_ERROR_NOT_SUPPORTED ? "CUDA_ERROR_NOT_SUPPORTED" : error ? "CUDA_ERROR_UNKNOWN" : "CUDA_SUCCESS";
  return CUDA_SUCCESS;
}
API CUresult cuGetProcAddress_v2(const char *name, void **function, int, cuuint64_t, CUdriverProcAddressQueryResult *result) {
  *function = entry_point(name);
  if (result) *result = *function ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
