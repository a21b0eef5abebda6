// Devices, their memory and who holds it. Memory of a process is one memfd, so that others can map it and none is left behind.
#include "machine.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>

namespace fake {
thread_local int current = 0;

static std::string text_of(const std::string &path) {
  std::string text;
  char buffer[4096];
  int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return text;
  for (ssize_t n; (n = read(file, buffer, sizeof buffer)) > 0;) text.append(buffer, n);
  close(file);
  return text;
}

static Machine read_machine() {
  const char *folder = getenv("FAKE_GPU");
  Machine m;
  m.folder = folder ? folder : "";
  if (size_t at = m.folder.find("%h"); at != std::string::npos) {  // a machine for each node of a cluster
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    m.folder.replace(at, 2, host);
  }
  char name[128] = "";
  std::string text = text_of(m.folder + "/machine");
  if (sscanf(text.c_str(), "%d %d %d %d %d %zu %zu %127[^\n]", &m.num_devices, &m.major, &m.minor, &m.num_processors,
             &m.shared_bytes_per_block, &m.memory_bytes, &m.context_bytes, name) != 8) {
    fprintf(stderr, "[fake-gpu] FAKE_GPU must name the folder of a machine; got '%s'. Next: python -m tests.fake_gpu run\n", m.folder.c_str());
    _exit(2);
  }
  m.name = name;
  return m;
}

const Machine &machine() {
  static Machine m = read_machine();
  return m;
}

// ---- visible devices
static int visible[64];

static int find_visible() {
  const char *mask = getenv("CUDA_VISIBLE_DEVICES");
  int count = 0;
  if (!mask) {
    for (; count < machine().num_devices; count++) visible[count] = count;
    return count;
  }
  std::string rest(mask);
  while (!rest.empty()) {
    size_t comma = rest.find(',');
    std::string part = rest.substr(0, comma);
    rest = comma == std::string::npos ? "" : rest.substr(comma + 1);
    bool is_uuid = part.rfind("GPU-", 0) == 0;
    char *end = nullptr;
    long index = is_uuid ? strtol(part.c_str() + part.size() - 2, &end, 16) : strtol(part.c_str(), &end, 10);
    if (part.empty() || *end || index < 0 || index >= machine().num_devices) break;  // as CUDA: the rest is ignored
    for (int i = 0; i < count; i++)
      if (visible[i] == index) return 0;
    visible[count++] = (int)index;
  }
  return count;
}
int num_visible() {
  static int count = find_visible();
  return count;
}
int physical(int device) { return device >= 0 && device < num_visible() ? visible[device] : 0; }

// ---- the ledger: bytes of each process on each device, in a file that all processes map
struct Entry {
  std::atomic<int> pid;
  std::atomic<long long> started, bytes;
};
constexpr int max_devices = 16, max_processes = 256;
struct Ledger {
  Entry entries[max_devices][max_processes];
};

static long long start_time(int pid) {  // 0 if the process is over
  std::string text = text_of("/proc/" + std::to_string(pid) + "/stat");
  size_t at = text.rfind(')');
  if (at == std::string::npos || text[at + 2] == 'Z' || text[at + 2] == 'X') return 0;
  const char *field = text.c_str() + at + 2;
  for (int i = 0; i < 19 && field; i++) field = strchr(field + 1, ' ');
  return field ? atoll(field) : 0;
}

static Ledger &ledger() {
  static Ledger *all = [] {
    int file = open((machine().folder + "/ledger").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate(file, sizeof(Ledger))) {
      perror("[fake-gpu] ledger");
      _exit(2);
    }
    void *room = mmap(nullptr, sizeof(Ledger), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return (Ledger *)room;
  }();
  return *all;
}

static bool is_alive(const Entry &entry) { return entry.pid && start_time(entry.pid) == entry.started; }

long long used_bytes(int device) {
  long long sum = 0;
  for (const Entry &entry : ledger().entries[device])
    if (is_alive(entry)) sum += entry.bytes;
  return sum;
}

int compute_processes(int device, int *pids, long long *bytes, int room) {
  int count = 0;
  for (const Entry &entry : ledger().entries[device])
    if (is_alive(entry) && count++ < room) pids[count - 1] = entry.pid, bytes[count - 1] = entry.bytes;
  return count;
}

static bool is_listed = false;
static Entry *own_entry(int device) {
  static std::mutex mutex;
  static std::map<int, std::pair<int, Entry *>> own;  // a forked child has an entry of its own
  std::lock_guard<std::mutex> guard(mutex);
  auto &known = own[device];
  int pid = getpid();
  if (known.first == pid) return known.second;
  for (Entry &entry : ledger().entries[device]) {
    int former = entry.pid;
    if (is_alive(entry) || !entry.pid.compare_exchange_strong(former, pid)) continue;
    entry.bytes = 0;
    entry.started = start_time(pid);
    if (used_bytes(device) + (long long)machine().context_bytes > (long long)machine().memory_bytes) {
      entry.pid = 0;
      return nullptr;
    }
    entry.bytes = machine().context_bytes;
    known = {pid, &entry};
    is_listed = true;
    return &entry;
  }
  return nullptr;
}

bool reserve(int device, long long bytes) {
  Entry *entry = own_entry(device);
  if (!entry || (bytes > 0 && used_bytes(device) + bytes > (long long)machine().memory_bytes)) return false;
  entry->bytes += bytes;
  return true;
}

// ---- memory
static std::map<char *, Block> blocks;
static std::mutex blocks_mutex;
static std::atomic<int64_t> next_offset{0};
constexpr size_t page = 4096;

int memory_file() {
  static int file = -1, owner = 0;
  static std::mutex mutex;
  std::lock_guard<std::mutex> guard(mutex);
  if (owner != getpid()) {
    owner = getpid();
    file = memfd_create("fake-gpu", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, (off_t)1 << 50)) {  // sparse: only written pages exist
      perror("[fake-gpu] memfd");
      _exit(2);
    }
  }
  return file;
}

int64_t new_extent(size_t bytes) { return next_offset.fetch_add((bytes + page - 1) / page * page); }
void drop_extent(int64_t offset, size_t bytes) {
  fallocate(memory_file(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, (bytes + page - 1) / page * page);
}
bool map_extent(void *address, size_t bytes, int64_t offset) {
  return mmap(address, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory_file(), offset) != MAP_FAILED;
}
void add_block(void *address, const Block &block) {
  std::lock_guard<std::mutex> guard(blocks_mutex);
  blocks[(char *)address] = block;
}
void forget_block(void *address) {
  std::lock_guard<std::mutex> guard(blocks_mutex);
  blocks.erase((char *)address);
}

bool find_block(const void *address, Block *block, char **base) {
  std::lock_guard<std::mutex> guard(blocks_mutex);
  auto next = blocks.upper_bound((char *)address);
  if (next == blocks.begin()) return false;
  auto &[first, found] = *--next;
  if ((char *)address >= first + found.size) return false;
  *block = found;
  if (base) *base = first;
  return true;
}

static int add_mapping(void **address, int file, const Block &block) {
  void *room = mmap(nullptr, block.size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, block.offset);
  if (room == MAP_FAILED) return out_of_memory;
  add_block(room, block);
  *address = room;
  return ok;
}

int allocate(void **address, size_t bytes) {
  *address = nullptr;
  if (!bytes) return ok;
  size_t size = (bytes + page - 1) / page * page;
  int device = physical(current);
  if (!reserve(device, (long long)size)) return out_of_memory;
  int result = add_mapping(address, memory_file(), {size, device, new_extent(size), getpid(), true, false});
  if (result) reserve(device, -(long long)size);
  return result;
}

// A mark beyond the memory tells other processes that a block still exists.
constexpr int64_t marks = (int64_t)1 << 49;
static void mark(int64_t offset, uint64_t value) {
  if (pwrite(memory_file(), &value, sizeof value, marks + offset / page * sizeof value) < 0) perror("[fake-gpu] mark");
}
void export_block(const Block &block) { mark(block.offset, block.size); }

int release(void *address) {
  if (!address) return ok;
  Block block;
  char *base;
  if (!find_block(address, &block, &base) || base != address) return invalid;
  forget_block(address);
  munmap(address, block.size);
  if (block.is_opened) return ok;
  mark(block.offset, 0);
  drop_extent(block.offset, block.size);
  reserve(block.physical, -(long long)block.size);
  return ok;
}

int open_block(void **address, int owner, int file_number, int64_t offset, size_t size, int device) {
  std::string path = "/proc/" + std::to_string(owner) + "/fd/" + std::to_string(file_number);
  char target[64] = "";
  if (readlink(path.c_str(), target, sizeof target - 1) < 0 || strncmp(target, "/memfd:fake-gpu", 15)) return invalid;
  int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return invalid;
  uint64_t mark = 0;
  bool is_stale = pread(file, &mark, sizeof mark, marks + offset / page * sizeof mark) != sizeof mark || mark != size;
  int result = is_stale ? invalid : add_mapping(address, file, {size, device, offset, owner, false, true});
  close(file);
  return result;
}

bool zero(void *address, size_t bytes) {
  Block block;
  char *base;
  if (!find_block(address, &block, &base) || block.is_opened || block.owner != getpid()) return false;
  char *first = (char *)(((uintptr_t)address + page - 1) / page * page), *end = (char *)address + bytes;
  if (first >= end) return false;
  size_t whole = (end - first) / page * page;
  memset(address, 0, first - (char *)address);
  drop_extent(block.offset + (first - base), whole);
  memset(first + whole, 0, end - (first + whole));
  return true;
}

bool is_dropped(size_t bytes) {
  static const bool dry = getenv("FAKE_GPU_DRY");
  return dry && bytes >= (1 << 16);
}

// ---- functions that are not implemented
static thread_local const char *missed = "";
const char *last_missing() { return missed; }
int missing(const char *name) {
  static std::mutex mutex;
  static std::set<std::string> seen;
  missed = name;
  std::lock_guard<std::mutex> guard(mutex);
  if (seen.insert(name).second) fprintf(stderr, "[fake-gpu] not implemented: %s\n", name);
  return not_supported;
}
API bool fake_gpu_zero(void *address, size_t bytes) { return zero(address, bytes); }

void *entry_point(const char *name) {
  static void *self = [] {
    Dl_info info;
    dladdr((void *)&fake_gpu_zero, &info);
    return dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  }();
  std::string versioned = std::string(name) + "_v2";
  void *found = dlsym(self, versioned.c_str());
  return found ? found : dlsym(self, name);
}

__attribute__((destructor)) static void leave() {
  if (!is_listed) return;
  for (auto &device : ledger().entries)
    for (Entry &entry : device)
      if (entry.pid == getpid()) entry.pid = 0;
}
}  // namespace fake
