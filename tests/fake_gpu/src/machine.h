// The machine without GPUs: its devices, and their memory as shared memory counted over processes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#define API extern "C" __attribute__((visibility("default")))

namespace fake {

struct Machine {
  int num_devices, major, minor, num_processors, shared_bytes_per_block;
  size_t memory_bytes;   // of one device
  size_t context_bytes;  // taken by each process on each device that it uses
  std::string name, folder;
};
const Machine &machine();  // of $FAKE_GPU; ends the process if that folder has no description

// Devices of this process: CUDA_VISIBLE_DEVICES selects them. `device` counts visible ones, `physical` all.
int num_visible();
int physical(int device);
extern thread_local int current;

// Memory. `ok`, `out_of_memory`, `invalid` and `not_supported` have the same numbers in runtime and driver.
constexpr int ok = 0, invalid = 1, out_of_memory = 2, not_supported = 801;
struct Block {
  size_t size;
  int physical;
  int64_t offset;    // in the memory file of `owner`
  int owner;         // process
  bool is_exported;  // an IPC handle may name it: made by cudaMalloc
  bool is_opened;    // made by another process
};
long long used_bytes(int physical);
int compute_processes(int physical, int *pids, long long *bytes, int room);
bool reserve(int physical, long long bytes);  // negative: give back
int allocate(void **address, size_t bytes);
int release(void *address);
bool find_block(const void *address, Block *block, char **base);
int memory_file();  // descriptor of this process's device memory
int open_block(void **address, int owner, int file_number, int64_t offset, size_t size, int physical);
void export_block(const Block &block);
bool zero(void *address, size_t bytes);  // drop whole pages; false if it is no device memory

// Physical memory of the driver's virtual memory interface.
int64_t new_extent(size_t bytes);
void drop_extent(int64_t offset, size_t bytes);
bool map_extent(void *address, size_t bytes, int64_t offset);
void add_block(void *address, const Block &block);
void forget_block(void *address);

// Streams. `submit` runs work now, or in late mode when a synchronisation needs it.
bool is_late();
void submit(void *stream, std::function<void()> work);
void synchronize(void *stream);
void synchronize_all();

// Dry mode ($FAKE_GPU_DRY): work on this many bytes is dropped.
bool is_dropped(size_t bytes);

// Record `work` if this thread captures a graph.
void record(std::function<void()> work);
bool is_capturing();

int missing(const char *name);  // report a function that is not implemented; returns not_supported
const char *last_missing();
void *entry_point(const char *name);
int attribute(int number);
}  // namespace fake
