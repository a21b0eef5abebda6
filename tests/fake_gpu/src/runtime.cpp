// libcudart without streams and events.
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

#include "machine.h"

using namespace fake;
using ull = unsigned long long;

static thread_local cudaError_t last_error = cudaSuccess;
static cudaError_t note(int error) {
  if (error) last_error = (cudaError_t)error;
  return (cudaError_t)error;
}
// Called by the stubs; a launch of the runtime is checked by its last error.
extern "C" void fake_gpu_missing(const char *name) {
  int error = missing(name);
  if (strstr(name, "cuda")) note(error);
}

// ---- devices
API cudaError_t cudaGetDeviceCount(int *count) {
  *count = num_visible();
  return note(*count ? cudaSuccess : cudaErrorNoDevice);
}
API cudaError_t cudaGetDevice(int *device) {
  *device = current;
  return cudaSuccess;
}
API cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= num_visible()) return note(cudaErrorInvalidDevice);
  current = device;
  return cudaSuccess;
}
API cudaError_t cudaDriverGetVersion(int *version) { return *version = CUDART_VERSION, cudaSuccess; }
API cudaError_t cudaRuntimeGetVersion(int *version) { return *version = CUDART_VERSION, cudaSuccess; }

int fake::attribute(int number) {
  const Machine &m = machine();
  switch (number) {
    case cudaDevAttrMaxThreadsPerBlock: case cudaDevAttrMaxBlockDimX: case cudaDevAttrMaxBlockDimY: return 1024;
    case cudaDevAttrMaxBlockDimZ: return 64;
    case cudaDevAttrMaxGridDimX: return 2147483647;
    case cudaDevAttrMaxGridDimY: case cudaDevAttrMaxGridDimZ: return 65535;
    case cudaDevAttrMaxSharedMemoryPerBlock: return 49152;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: return m.shared_bytes_per_block;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: return m.shared_bytes_per_block + 1024;
    case cudaDevAttrTotalConstantMemory: return 65536;
    case cudaDevAttrWarpSize: return 32;
    case cudaDevAttrMaxRegistersPerBlock: case cudaDevAttrMaxRegistersPerMultiprocessor: return 65536;
    case cudaDevAttrClockRate: return 1980000;
    case cudaDevAttrMemoryClockRate: return 2619000;
    case cudaDevAttrGlobalMemoryBusWidth: return 5120;
    case cudaDevAttrL2CacheSize: return 50 << 20;
    case cudaDevAttrMultiProcessorCount: return m.num_processors;
    case cudaDevAttrMaxThreadsPerMultiProcessor: return 2048;
    case cudaDevAttrMaxBlocksPerMultiprocessor: return 32;
    case cudaDevAttrComputeCapabilityMajor: return m.major;
    case cudaDevAttrComputeCapabilityMinor: return m.minor;
    case cudaDevAttrUnifiedAddressing: case cudaDevAttrConcurrentKernels: case cudaDevAttrCooperativeLaunch: return 1;
    case cudaDevAttrMemoryPoolsSupported: case 102 /* virtual memory management */: return 1;
    case cudaDevAttrAsyncEngineCount: return 3;
    default: return 0;
  }
}
API cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr number, int) { return *value = attribute(number), cudaSuccess; }
API cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device) {
  if (device < 0 || device >= num_visible()) return note(cudaErrorInvalidDevice);
  const Machine &m = machine();
  *p = {};
  strncpy(p->name, m.name.c_str(), sizeof p->name - 1);
  p->totalGlobalMem = m.memory_bytes;
  p->major = m.major, p->minor = m.minor;
  p->multiProcessorCount = m.num_processors;
  p->sharedMemPerBlock = 49152;
  p->sharedMemPerBlockOptin = m.shared_bytes_per_block;
  p->sharedMemPerMultiprocessor = m.shared_bytes_per_block + 1024;
  p->regsPerBlock = p->regsPerMultiprocessor = 65536;
  p->warpSize = 32;
  p->maxThreadsPerBlock = p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
  p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 2147483647, p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->maxThreadsPerMultiProcessor = 2048, p->maxBlocksPerMultiProcessor = 32;
  p->totalConstMem = 65536, p->l2CacheSize = 50 << 20, p->memoryBusWidth = 5120;
  p->unifiedAddressing = p->concurrentKernels = p->cooperativeLaunch = p->canMapHostMemory = p->memoryPoolsSupported = 1;
  p->asyncEngineCount = 3;
  p->pciBusID = physical(device) + 1;
  p->uuid.bytes[15] = (char)physical(device);
  return cudaSuccess;
}
API cudaError_t cudaDeviceGetPCIBusId(char *text, int room, int device) {
  snprintf(text, room, "0000:%02X:00.0", physical(device) + 1);
  return cudaSuccess;
}
API cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return cudaSuccess;
}
API cudaError_t cudaDeviceCanAccessPeer(int *can, int one, int other) { return *can = one != other, cudaSuccess; }
API cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total) {
  int device = physical(current);
  if (!reserve(device, 0)) return note(cudaErrorMemoryAllocation);  // the context of this process counts
  long long used = used_bytes(device);
  *total = machine().memory_bytes;
  *free_bytes = used > (long long)*total ? 0 : *total - used;
  return cudaSuccess;
}

// ---- errors
API cudaError_t cudaGetLastError() {
  cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}
API cudaError_t cudaPeekAtLastError() { return last_error; }
API const char *cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorNoDevice: return "cudaErrorNoDevice";
    case cudaErrorNotSupported: return "cudaErrorNotSupported";
    default: return "cudaErrorUnknown";
  }
}
API const char *cudaGetErrorString(cudaError_t error) {
  static thread_local std::string text;
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    case cudaErrorNotSupported: return (text = std::string("the fake GPU does not implement ") + last_missing()).c_str();
    default: return (text = "error " + std::to_string((int)error)).c_str();
  }
}

// ---- memory
API cudaError_t cudaMalloc(void **address, size_t bytes) { return note(allocate(address, bytes)); }
API cudaError_t cudaMallocAsync(void **address, size_t bytes, cudaStream_t) { return note(allocate(address, bytes)); }
API cudaError_t cudaFree(void *address) { return synchronize_all(), note(release(address)); }
API cudaError_t cudaFreeAsync(void *address, cudaStream_t) { return cudaFree(address); }

static std::map<char *, size_t> pinned;
static std::mutex pinned_mutex;
static bool is_pinned(const void *address) {
  std::lock_guard<std::mutex> guard(pinned_mutex);
  auto next = pinned.upper_bound((char *)address);
  return next != pinned.begin() && (--next, (char *)address < next->first + next->second);
}
API cudaError_t cudaHostRegister(void *address, size_t bytes, unsigned) {
  std::lock_guard<std::mutex> guard(pinned_mutex);
  pinned[(char *)address] = bytes;
  return cudaSuccess;
}
API cudaError_t cudaHostUnregister(void *address) {
  std::lock_guard<std::mutex> guard(pinned_mutex);
  return note(pinned.erase((char *)address) ? ok : (int)cudaErrorHostMemoryNotRegistered);
}
API cudaError_t cudaHostAlloc(void **address, size_t bytes, unsigned flags) {
  *address = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  return *address ? cudaHostRegister(*address, bytes, flags) : note(out_of_memory);
}
API cudaError_t cudaMallocHost(void **address, size_t bytes) { return cudaHostAlloc(address, bytes, 0); }
API cudaError_t cudaFreeHost(void *address) {
  synchronize_all();
  cudaError_t error = address ? cudaHostUnregister(address) : cudaSuccess;
  if (!error) free(address);
  return error;
}
API cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned) { return *device = host, cudaSuccess; }
API cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *a, const void *address) {
  *a = {};
  Block block;
  if (find_block(address, &block, nullptr)) {
    a->type = cudaMemoryTypeDevice;
    a->devicePointer = (void *)address;
    for (int device = 0; device < num_visible(); device++)
      if (physical(device) == block.physical) a->device = device;
  } else {
    bool is_known = is_pinned(address);
    a->type = is_known ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered;
    a->hostPointer = (void *)address;
    if (is_known) a->devicePointer = (void *)address, a->device = current;
  }
  return cudaSuccess;
}

API bool fake_gpu_is_pinned(const void *address) { return is_pinned(address); }

static cudaError_t copy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream, bool is_asynchronous = true) {
  Block block;
  if (!bytes || is_dropped(bytes)) return cudaSuccess;
  bool wants_to = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  bool wants_from = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if ((wants_to && !find_block(to, &block, nullptr)) || (wants_from && !find_block(from, &block, nullptr)))
    return note(cudaErrorInvalidValue);
  auto is_ours = [&](const void *place) { return find_block(place, &block, nullptr) || is_pinned(place); };
  submit(stream, [=] { memmove(to, from, bytes); });
  if (!is_asynchronous || !is_ours(to) || !is_ours(from)) synchronize(stream);  // as CUDA: of plain host memory
  record([=] { memmove(to, from, bytes); });
  return cudaSuccess;
}
API cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind) { return copy(to, from, bytes, kind, nullptr, false); }
API cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) { return copy(to, from, bytes, kind, stream); }
API cudaError_t cudaMemcpyPeerAsync(void *to, int, const void *from, int, size_t bytes, cudaStream_t stream) { return copy(to, from, bytes, cudaMemcpyDeviceToDevice, stream); }
API cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
  for (size_t row = 0; row < height; row++)
    if (cudaError_t error = copy((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width, kind, stream)) return error;
  return cudaSuccess;
}
API cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
  Block block;
  if (bytes && !find_block(to, &block, nullptr)) return note(cudaErrorInvalidValue);
  if (is_dropped(bytes)) return cudaSuccess;
  auto set = [=] {
    if (value || bytes < (1 << 20) || !zero(to, bytes)) memset(to, value, bytes);
  };
  submit(stream, set);
  record(set);
  return cudaSuccess;
}
API cudaError_t cudaMemset(void *to, int value, size_t bytes) { return cudaMemsetAsync(to, value, bytes, nullptr); }

// ---- memory of other processes
struct MemoryHandle {
  int owner, file, physical;
  int64_t offset;
  size_t size;
};
static_assert(sizeof(MemoryHandle) <= sizeof(cudaIpcMemHandle_t));
API cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *address) {
  Block block;
  *handle = {};
  if (!find_block(address, &block, nullptr) || !block.is_exported) return note(cudaErrorInvalidValue);
  MemoryHandle own{getpid(), memory_file(), block.physical, block.offset, block.size};
  export_block(block);
  memcpy(handle, &own, sizeof own);
  return cudaSuccess;
}
API cudaError_t cudaIpcOpenMemHandle(void **address, cudaIpcMemHandle_t handle, unsigned) {
  MemoryHandle other;
  memcpy(&other, &handle, sizeof other);
  if (other.owner == getpid()) return note(cudaErrorDeviceUninitialized);  // as CUDA: not in the process that made it
  return note(open_block(address, other.owner, other.file, other.offset, other.size, other.physical));
}
API cudaError_t cudaIpcCloseMemHandle(void *address) { return note(release(address)); }

API cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int) { return *pool = (cudaMemPool_t)1, cudaSuccess; }

// ---- graphs: the work of a capture, which also runs while it is captured
struct CUgraph_st { std::vector<std::function<void()>> work; ull id; };
static thread_local CUgraph_st *captured = nullptr;
static thread_local bool is_paused = false;  // while a replacement of a kernel runs, which is recorded as a whole
bool fake::is_capturing() { return captured && !is_paused; }
void fake::record(std::function<void()> work) {
  if (is_capturing()) captured->work.push_back(std::move(work));
}
API bool fake_gpu_is_capturing() { return is_capturing(); }
API void fake_gpu_pause(bool pause) { is_paused = pause; }
API void fake_gpu_record(void (*call)(void *), void (*drop)(void *), void *data) {
  std::shared_ptr<void> owned(data, drop);
  record([=] { call(owned.get()); });
}
API cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
  static ull last = 0;
  synchronize_all();
  if (captured) return note(cudaErrorIllegalState);
  captured = new CUgraph_st{{}, ++last};
  return cudaSuccess;
}
API cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t *graph) {
  if (!captured) return note(cudaErrorIllegalState);
  *graph = captured;
  captured = nullptr;
  return cudaSuccess;
}
static cudaStreamCaptureStatus capture_status() { return captured ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone; }
API cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus *status) { return *status = capture_status(), cudaSuccess; }
API cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus *status, ull *id, cudaGraph_t *graph, const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges, size_t *count) {
  *status = capture_status();
  if (id) *id = captured ? captured->id : 0;
  if (graph) *graph = captured;
  if (nodes) *nodes = nullptr;
  if (edges) *edges = nullptr;
  if (count) *count = 0;
  return cudaSuccess;
}
API cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count) {
  if (nodes) return note(missing("cudaGraphGetNodes with nodes"));
  return *count = graph->work.size(), cudaSuccess;
}
API cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *exec, cudaGraph_t graph, ull) { return *exec = (cudaGraphExec_t) new CUgraph_st(*graph), cudaSuccess; }
API cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, ull flags) { return cudaGraphInstantiateWithFlags(exec, graph, flags); }
API cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  return submit(stream, [=] { for (auto &work : ((CUgraph_st *)exec)->work) work(); }), cudaSuccess;
}
API cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return delete graph, cudaSuccess; }
API cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) { return synchronize_all(), delete (CUgraph_st *)exec, cudaSuccess; }

// ---- kernels: none of them can run; a launch fails with the name of the kernel
static std::unordered_map<const void *, std::string> &kernels() {
  static auto *all = new std::unordered_map<const void *, std::string>;
  return *all;
}
static std::mutex kernels_mutex;
API void **__cudaRegisterFatBinary(void *) { return (void **)calloc(1, 64); }
API void __cudaRegisterFatBinaryEnd(void **) {}
API void __cudaUnregisterFatBinary(void **binary) { free(binary); }
API void __cudaRegisterFunction(void **, const char *function, char *, const char *name, int, uint3 *, uint3 *, dim3 *, dim3 *, int *) {
  std::lock_guard<std::mutex> guard(kernels_mutex);
  kernels()[function] = name;
}
API void __cudaRegisterVar(void **, char *, char *, const char *, int, size_t, int, int) {}
static thread_local struct { dim3 grid, block; size_t shared; void *stream; } pushed;
API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream) { return pushed = {grid, block, shared, stream}, 0; }
API cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
  *grid = pushed.grid, *block = pushed.block, *shared = pushed.shared;
  *(void **)stream = pushed.stream;
  return cudaSuccess;
}
API cudaError_t __cudaGetKernel(void **kernel, const void *function) { return *kernel = (void *)function, cudaSuccess; }
API cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *a, const void *) {
  *a = {};
  a->maxThreadsPerBlock = 1024, a->numRegs = 32;
  a->binaryVersion = a->ptxVersion = machine().major * 10 + machine().minor;
  a->maxDynamicSharedSizeBytes = machine().shared_bytes_per_block;
  return cudaSuccess;
}
API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *, int, size_t, unsigned) { return *blocks = 2, cudaSuccess; }
API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *, int, size_t) { return *blocks = 2, cudaSuccess; }
static cudaError_t launch(const void *function) {
  std::lock_guard<std::mutex> guard(kernels_mutex);
  auto found = kernels().find(function);
  return note(missing(found == kernels().end() ? "a kernel" : found->second.c_str()));
}
API cudaError_t cudaLaunchKernel(const void *function, dim3, dim3, void **, size_t, cudaStream_t) { return launch(function); }
API cudaError_t __cudaLaunchKernel(const void *function, dim3, dim3, void **, size_t, cudaStream_t) { return launch(function); }
API cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *, const void *function, void **) { return launch(function); }
API cudaError_t cudaLaunchCooperativeKernel(const void *function, dim3, dim3, void **, size_t, cudaStream_t) { return launch(function); }

API cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned, ull, cudaDriverEntryPointQueryResult *result) {
  *function = entry_point(name);
  if (result) *result = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
API cudaError_t cudaGetDriverEntryPoint(const char *name, void **function, ull flags, cudaDriverEntryPointQueryResult *result) {
  return cudaGetDriverEntryPointByVersion(name, function, 0, flags, result);
}
