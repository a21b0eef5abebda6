// NCCL: collectives through a file that the ranks of a communicator share. Sums are in the order of the ranks.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <vector>

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "machine.h"

using namespace fake;
constexpr int max_ranks = 16;
constexpr size_t chunk_bytes = 1 << 20;
constexpr double deadline_s = 900;

struct Mailbox { std::atomic<uint64_t> written, read; };
struct Shared {
  std::atomic<int> pids[max_ranks], is_aborted;
  std::atomic<uint64_t> spaces[max_ranks];  // pids of other containers mean nothing here
  std::atomic<uint64_t> arrived[max_ranks];
  Mailbox mail[max_ranks][max_ranks];
};
struct ncclComm {
  int rank = 0, size = 0, device = 0;
  uint64_t round = 0;
  std::atomic<bool> is_aborted{false};
  std::atomic<int> error{ncclSuccess};
  Shared *shared = nullptr;
  size_t bytes = 0;
  std::vector<double> factors;  // of its reductions of the kind PreMulSum

  // Two chunks a rank, so that a rank may write one while others still read the other; then one a pair of ranks.
  char *chunk(int of, int half) { return (char *)(shared + 1) + (2 * of + half) * chunk_bytes; }
  char *mail(int from, int to) { return (char *)(shared + 1) + (2 * size + from * size + to) * chunk_bytes; }
};

static thread_local std::string last_text = "";
static ncclResult_t fail(ncclComm *comm, ncclResult_t error, const std::string &text) {
  last_text = text;
  if (comm) comm->error = error;
  return error;
}
static double now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}

static uint64_t pid_space() {
  struct stat space{};
  stat("/proc/self/ns/pid", &space);
  return space.st_ino;
}

// Wait until `is_ready`; fails if the communicator was aborted, a rank is over or nothing came within the deadline.
template <class Ready>
static ncclResult_t wait_until(ncclComm *comm, Ready is_ready) {
  double start = now(), looked = start;
  for (int turn = 0; !is_ready(); turn++) {
    if (comm->is_aborted || comm->shared->is_aborted) return fail(comm, ncclInternalError, "the communicator was aborted");
    timespec pause{0, turn < 100 ? 20'000 : 500'000};
    nanosleep(&pause, nullptr);
    if (now() - looked < 0.2) continue;
    looked = now();
    for (int rank = 0; rank < comm->size; rank++) {
      int pid = comm->shared->pids[rank];
      if (pid && comm->shared->spaces[rank] == pid_space() && kill(pid, 0) && !is_ready()) return fail(comm, ncclRemoteError, "rank " + std::to_string(rank) + " is over");
    }
    if (looked - start > deadline_s) return fail(comm, ncclSystemError, "the other ranks did not come");
  }
  return ncclSuccess;
}
static ncclResult_t barrier(ncclComm *comm) {
  uint64_t round = ++comm->round;
  comm->shared->arrived[comm->rank] = round;
  return wait_until(comm, [=] {
    for (int rank = 0; rank < comm->size; rank++)
      if (comm->shared->arrived[rank] < round) return false;
    return true;
  });
}

// Show `bytes` of `data` (null: none) to all ranks, a chunk at a time; `take` gets the place and size of each. All ranks pass the same `bytes`.
template <class Take>
static ncclResult_t exchange(ncclComm *comm, const void *data, size_t bytes, Take take) {
  if (is_dropped(bytes)) return ncclSuccess;
  for (size_t offset = 0; offset < bytes; offset += chunk_bytes) {
    size_t size = std::min(chunk_bytes, bytes - offset);
    int half = (comm->round + 1) % 2;
    if (data) memcpy(comm->chunk(comm->rank, half), (const char *)data + offset, size);
    if (ncclResult_t error = barrier(comm)) return error;
    take(half, offset, size);
  }
  return ncclSuccess;
}

// ---- reductions
static size_t size_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8: case ncclUint8: case ncclFloat8e4m3: case ncclFloat8e5m2: return 1;
    case ncclFloat16: case ncclBfloat16: return 2;
    case ncclInt32: case ncclUint32: case ncclFloat32: return 4;
    default: return 8;
  }
}
template <class Value> static Value combine(Value a, Value b, ncclRedOp_t op) {
  switch (op) {
    case ncclProd: return a * b;
    case ncclMax: return std::max(a, b);
    case ncclMin: return std::min(a, b);
    default: return a + b;
  }
}
template <class Stored, class Value>
static void reduce_as(ncclComm *comm, void *to, int half, size_t bytes, ncclRedOp_t op) {
  bool is_scaled = op >= ncclNumOps;
  for (size_t i = 0; i < bytes / sizeof(Stored); i++) {
    Value sum{};
    for (int rank = 0; rank < comm->size; rank++) {
      Value one = (Value)((const Stored *)comm->chunk(rank, half))[i];
      if (is_scaled) one = (Value)(one * (Value)comm->factors[op - ncclNumOps]);
      sum = rank ? combine<Value>(sum, one, op) : one;
    }
    ((Stored *)to)[i] = (Stored)(op == ncclAvg ? (Value)(sum / (Value)comm->size) : sum);
  }
}
static bool reduce_chunk(ncclComm *comm, void *to, int half, size_t bytes, ncclDataType_t type, ncclRedOp_t op) {
  switch (type) {
    case ncclInt8: reduce_as<int8_t, int8_t>(comm, to, half, bytes, op); return true;
    case ncclUint8: reduce_as<uint8_t, uint8_t>(comm, to, half, bytes, op); return true;
    case ncclInt32: reduce_as<int32_t, int32_t>(comm, to, half, bytes, op); return true;
    case ncclUint32: reduce_as<uint32_t, uint32_t>(comm, to, half, bytes, op); return true;
    case ncclInt64: reduce_as<int64_t, int64_t>(comm, to, half, bytes, op); return true;
    case ncclUint64: reduce_as<uint64_t, uint64_t>(comm, to, half, bytes, op); return true;
    case ncclFloat16: reduce_as<__half, float>(comm, to, half, bytes, op); return true;
    case ncclBfloat16: reduce_as<__nv_bfloat16, float>(comm, to, half, bytes, op); return true;
    case ncclFloat32: reduce_as<float, float>(comm, to, half, bytes, op); return true;
    case ncclFloat64: reduce_as<double, double>(comm, to, half, bytes, op); return true;
    default: return false;
  }
}

// ---- groups: calls between start and end run at the end, sends and receives side by side
struct Transfer {
  ncclComm *comm;
  char *data;
  size_t bytes;
  int peer;
  bool is_send;
};
static thread_local int depth = 0;
static thread_local std::deque<std::function<ncclResult_t()>> waiting;
static thread_local std::deque<Transfer> transfers;

static bool advance(Transfer &t) {
  ncclComm *comm = t.comm;
  int from = t.is_send ? comm->rank : t.peer, to = t.is_send ? t.peer : comm->rank;
  Mailbox &box = comm->shared->mail[from][to];
  if ((box.written > box.read) == t.is_send) return false;
  size_t size = std::min(chunk_bytes, t.bytes);
  if (t.is_send) memcpy(comm->mail(from, to), t.data, size), box.written++;
  else memcpy(t.data, comm->mail(from, to), size), box.read++;
  t.data += size, t.bytes -= size;
  return true;
}
static ncclResult_t run_transfers(std::deque<Transfer> left) {
  left.erase(std::remove_if(left.begin(), left.end(), [](const Transfer &t) { return !t.bytes || is_dropped(t.bytes); }), left.end());
  while (!left.empty()) {
    auto step = [&] {
      for (size_t i = 0; i < left.size(); i++) {
        bool is_first = std::none_of(left.begin(), left.begin() + i, [&](const Transfer &t) { return t.comm == left[i].comm && t.peer == left[i].peer && t.is_send == left[i].is_send; });
        if (!is_first || !advance(left[i])) continue;
        if (!left[i].bytes) left.erase(left.begin() + i);
        return true;
      }
      return false;
    };
    if (ncclResult_t error = wait_until(left.front().comm, step)) return error;
  }
  return ncclSuccess;
}
static thread_local void *group_stream = nullptr;
static ncclResult_t run_all() {
  // In late mode the result is success, and ncclCommGetAsyncError has the error.
  auto result = std::make_shared<ncclResult_t>(ncclSuccess);
  auto run = [result, calls = std::move(waiting), rest = std::move(transfers)] {
    for (auto &call : calls)
      if ((*result = call())) return;
    *result = run_transfers(rest);
  };
  waiting.clear(), transfers.clear();
  record(run);
  fake::submit(group_stream, run);
  return is_late() ? ncclSuccess : *result;
}
static ncclResult_t submit(std::function<ncclResult_t()> call, void *stream) {
  group_stream = stream;
  waiting.push_back(std::move(call));
  return depth ? ncclSuccess : run_all();
}
API ncclResult_t ncclGroupStart() { return depth++, ncclSuccess; }
API ncclResult_t ncclGroupEnd() { return --depth ? ncclSuccess : run_all(); }

// ---- collectives
API ncclResult_t ncclAllReduce(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return submit([=] {
    bool is_known = true;
    ncclResult_t error = exchange(comm, send, count * size_of(type), [&](int half, size_t offset, size_t size) {
      is_known = reduce_chunk(comm, (char *)receive + offset, half, size, type, op);
    });
    return error || is_known ? error : fail(comm, ncclInvalidArgument, "the fake NCCL does not reduce this type");
  }, stream);
}
API ncclResult_t ncclReduce(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  return submit([=] {
    return exchange(comm, send, count * size_of(type), [&](int half, size_t offset, size_t size) {
      if (comm->rank == root) reduce_chunk(comm, (char *)receive + offset, half, size, type, op);
    });
  }, stream);
}
API ncclResult_t ncclReduceScatter(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return submit([=] {
    size_t bytes = count * size_of(type);
    // The result may lie in the input: it is written when all ranks have shown all of it.
    std::vector<char> result(is_dropped(bytes) ? 0 : bytes);
    for (int block = 0; block < comm->size; block++) {
      ncclResult_t error = exchange(comm, (const char *)send + block * bytes, bytes, [&](int half, size_t offset, size_t size) {
        if (block == comm->rank) reduce_chunk(comm, result.data() + offset, half, size, type, op);
      });
      if (error) return error;
    }
    if (!is_dropped(bytes)) memcpy(receive, result.data(), bytes);
    return ncclSuccess;
  }, stream);
}
API ncclResult_t ncclAllGather(const void *send, void *receive, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
  return submit([=] {
    size_t bytes = count * size_of(type);
    return exchange(comm, send, bytes, [&](int half, size_t offset, size_t size) {
      for (int rank = 0; rank < comm->size; rank++) memcpy((char *)receive + rank * bytes + offset, comm->chunk(rank, half), size);
    });
  }, stream);
}
API ncclResult_t ncclBroadcast(const void *send, void *receive, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream) {
  return submit([=] {
    return exchange(comm, comm->rank == root ? send : nullptr, count * size_of(type), [&](int half, size_t offset, size_t size) {
      memcpy((char *)receive + offset, comm->chunk(root, half), size);
    });
  }, stream);
}
API ncclResult_t ncclBcast(void *data, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream) {
  return ncclBroadcast(data, data, count, type, root, comm, stream);
}
static ncclResult_t transfer(void *data, size_t count, ncclDataType_t type, int peer, ncclComm *comm, bool is_send, void *stream) {
  Transfer one{comm, (char *)data, count * size_of(type), peer, is_send};
  group_stream = stream;
  transfers.push_back(one);
  return depth ? ncclSuccess : run_all();
}
API ncclResult_t ncclSend(const void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) { return transfer((void *)data, count, type, peer, comm, true, stream); }
API ncclResult_t ncclRecv(void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) { return transfer(data, count, type, peer, comm, false, stream); }
API ncclResult_t ncclAlltoAll(const void *send, void *receive, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
  size_t bytes = count * size_of(type);
  ncclGroupStart();
  for (int rank = 0; rank < comm->size; rank++) {
    ncclSend((const char *)send + rank * bytes, count, type, rank, comm, stream);
    ncclRecv((char *)receive + rank * bytes, count, type, rank, comm, stream);
  }
  return ncclGroupEnd();
}
API ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t type, ncclScalarResidence_t, ncclComm_t comm) {
  double factor;
  switch (type) {
    case ncclFloat16: factor = __half2float(*(__half *)scalar); break;
    case ncclBfloat16: factor = __bfloat162float(*(__nv_bfloat16 *)scalar); break;
    case ncclFloat32: factor = *(float *)scalar; break;
    case ncclFloat64: factor = *(double *)scalar; break;
    default: return fail(comm, ncclInvalidArgument, "the fake NCCL does not scale this type");
  }
  comm->factors.push_back(factor);
  return *op = (ncclRedOp_t)(ncclNumOps + comm->factors.size() - 1), ncclSuccess;
}
API ncclResult_t ncclRedOpDestroy(ncclRedOp_t, ncclComm_t) { return ncclSuccess; }

// ---- communicators
API ncclResult_t ncclGetVersion(int *version) { return *version = NCCL_VERSION_CODE, ncclSuccess; }
API ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
  *id = {};
  std::random_device random;
  const char *shared = getenv("FAKE_GPU_SHARED");  // a folder that the nodes of a cluster see
  snprintf(id->internal, sizeof id->internal, "%s/fake-gpu-%08x%08x%08x", shared ? shared : "/dev/shm", random(), random(), random());
  return ncclSuccess;
}
API ncclResult_t ncclCommInitRank(ncclComm_t *made, int size, ncclUniqueId id, int rank) {
  if (size > max_ranks || !strstr(id.internal, "/fake-gpu-")) return fail(nullptr, ncclInvalidArgument, "the fake NCCL has at most 16 ranks, and ids of its own");
  auto comm = std::make_unique<ncclComm>();
  comm->rank = rank, comm->size = size, comm->device = current;
  comm->bytes = sizeof(Shared) + (2 * size + size * size) * chunk_bytes;
  std::string path = id.internal;
  int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0 || ftruncate(file, comm->bytes)) return fail(nullptr, ncclSystemError, "cannot make " + path);
  void *room = mmap(nullptr, comm->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (room == MAP_FAILED) return fail(nullptr, ncclSystemError, "cannot map " + path);
  comm->shared = (Shared *)room;
  comm->shared->spaces[rank] = pid_space();
  comm->shared->pids[rank] = getpid();
  ncclResult_t error = barrier(comm.get());
  if (error || rank == 0) unlink(path.c_str());
  if (error) return error;
  reserve(physical(current), 0);
  return *made = comm.release(), ncclSuccess;
}
API ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int size, ncclUniqueId id, int rank, ncclConfig_t *) { return ncclCommInitRank(comm, size, id, rank); }
API ncclResult_t ncclCommInitRankScalable(ncclComm_t *comm, int size, int rank, int, ncclUniqueId *ids, ncclConfig_t *) { return ncclCommInitRank(comm, size, ids[0], rank); }
API ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *made, ncclConfig_t *) {
  struct Member { int color, key, rank; ncclUniqueId id; } own{color, key, comm->rank, {}};
  ncclGetUniqueId(&own.id);
  std::vector<Member> members;
  ncclResult_t error = exchange(comm, &own, sizeof own, [&](int half, size_t, size_t) {
    for (int rank = 0; rank < comm->size; rank++) members.push_back(*(Member *)comm->chunk(rank, half));
  });
  *made = nullptr;
  if (error || color == NCCL_SPLIT_NOCOLOR) return error;
  members.erase(std::remove_if(members.begin(), members.end(), [=](const Member &m) { return m.color != color; }), members.end());
  std::stable_sort(members.begin(), members.end(), [](const Member &a, const Member &b) { return a.key < b.key; });
  int rank = (int)(std::find_if(members.begin(), members.end(), [=](const Member &m) { return m.rank == comm->rank; }) - members.begin());
  return ncclCommInitRank(made, (int)members.size(), members[0].id, rank);
}
API ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclSuccess; }
API ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  synchronize_all();
  munmap(comm->shared, comm->bytes);
  return delete comm, ncclSuccess;
}
API ncclResult_t ncclCommAbort(ncclComm_t comm) {
  // Another thread may be waiting in it, so that its memory stays.
  comm->is_aborted = true;
  comm->shared->is_aborted = 1;
  return ncclSuccess;
}
API ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error) { return *error = (ncclResult_t)comm->error.load(), ncclSuccess; }
API ncclResult_t ncclCommCount(const ncclComm_t comm, int *size) { return *size = comm->size, ncclSuccess; }
API ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank) { return *rank = comm->rank, ncclSuccess; }
API ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device) { return *device = comm->device, ncclSuccess; }
API ncclResult_t ncclCommRegister(const ncclComm_t, void *, size_t, void **handle) { return *handle = nullptr, ncclSuccess; }
API ncclResult_t ncclCommDeregister(const ncclComm_t, void *) { return ncclSuccess; }
API ncclResult_t ncclMemAlloc(void **address, size_t bytes) { return allocate(address, bytes) ? ncclUnhandledCudaError : ncclSuccess; }
API ncclResult_t ncclMemFree(void *address) { return release(address) ? ncclUnhandledCudaError : ncclSuccess; }
API const char *ncclGetErrorString(ncclResult_t error) { return error == ncclSuccess ? "no error" : error == ncclRemoteError ? "remote process exited" : "error of the fake NCCL"; }
API const char *ncclGetLastError(const ncclComm_t) { return last_text.c_str(); }
