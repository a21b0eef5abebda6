// Streams and events. Work runs at the call; in late mode ($FAKE_GPU_LATE: seconds) it waits in its stream's queue until a
// synchronisation needs it, or for that many seconds. Then a missing synchronisation reads old bytes.
#include <cuda_runtime_api.h>

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "machine.h"

using namespace fake;

struct Queue;
struct Moment {  // a place in a queue: after its first `number` items
  Queue *queue = nullptr;
  uint64_t number = 0;
};
struct Item {
  std::function<void()> work;
  Moment needs;
  double since;
};
struct Queue {
  std::deque<Item> items;
  uint64_t submitted = 0, done = 0;
  bool is_busy = false;
};
struct CUstream_st { int priority; Queue queue; bool is_blocking; };
struct CUevent_st { double seconds = -1; Moment moment; };

// Never destroyed: threads wait in them at the end of the process.
static auto &mutex = *new std::mutex;
static auto &changed = *new std::condition_variable;
static auto &queues = *new std::map<Queue *, std::thread>;
static thread_local bool is_executing = false;

static double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }
static double delay() {
  static double seconds = getenv("FAKE_GPU_LATE") ? atof(getenv("FAKE_GPU_LATE")) : 0;
  return seconds;
}
bool fake::is_late() { return delay() > 0 && !is_executing && !is_capturing(); }
API bool fake_gpu_is_late() { return is_late(); }

// Run the items of a queue up to a place; two threads may do so, each item runs once and in order.
static void run(Queue *queue, uint64_t number) {
  std::unique_lock<std::mutex> lock(mutex);
  while (queue->done < number) {
    if (queue->is_busy) {
      changed.wait(lock);
      continue;
    }
    Item item = std::move(queue->items.front());
    queue->items.pop_front();
    queue->is_busy = true;
    lock.unlock();
    if (item.needs.queue) run(item.needs.queue, item.needs.number);
    const bool was_executing = is_executing;
    is_executing = true;
    if (item.work) item.work();
    item.work = nullptr;
    is_executing = was_executing;
    lock.lock();
    queue->is_busy = false;
    queue->done++;
    changed.notify_all();
  }
}
static void run_when_due(Queue *queue) {
  std::unique_lock<std::mutex> lock(mutex);
  for (;;) {
    if (queue->items.empty() || queue->is_busy) {
      changed.wait(lock);
      continue;
    }
    double left = queue->items.front().since + delay() - now();
    if (left > 0) {
      changed.wait_for(lock, std::chrono::duration<double>(left));
      continue;
    }
    uint64_t number = queue->done + 1;
    lock.unlock();
    run(queue, number);
    lock.lock();
  }
}
static Queue *queue_of(void *handle) {
  static auto *defaults = new Queue[64];
  auto stream = (CUstream_st *)handle;
  return (size_t)handle <= 2 || stream->is_blocking ? &defaults[current] : &stream->queue;
}
static void push(Queue *queue, Item item) {
  std::lock_guard<std::mutex> guard(mutex);
  if (!queues.count(queue)) queues.emplace(queue, std::thread(run_when_due, queue)).first->second.detach();
  queue->items.push_back(std::move(item));
  queue->submitted++;
  changed.notify_all();
}
void fake::submit(void *stream, std::function<void()> work) {
  if (is_late()) push(queue_of(stream), {std::move(work), {}, now()});
  else work();
}
static void finish(Queue *queue) {
  if (is_executing) return;  // its own queue may be the one that runs
  uint64_t number;
  {
    std::lock_guard<std::mutex> guard(mutex);
    number = queue->submitted;
  }
  run(queue, number);
}
void fake::synchronize(void *stream) { finish(queue_of(stream)); }
void fake::synchronize_all() {
  std::vector<Queue *> all;
  {
    std::lock_guard<std::mutex> guard(mutex);
    for (auto &[queue, thread] : queues) all.push_back(queue);
  }
  for (Queue *queue : all) finish(queue);
}
API void fake_gpu_synchronize(void *stream) { synchronize(stream); }
API void fake_gpu_submit(void *stream, void (*call)(void *), void *data) {
  submit(stream, [=] { call(data); });
}

// ---- streams
static cudaError_t new_stream(cudaStream_t *stream, unsigned flags, int priority) {
  return *stream = new CUstream_st{priority, {}, flags != cudaStreamNonBlocking}, cudaSuccess;
}
API cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) { return new_stream(stream, flags, priority); }
API cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) { return new_stream(stream, flags, 0); }
API cudaError_t cudaStreamCreate(cudaStream_t *stream) { return new_stream(stream, cudaStreamDefault, 0); }
API cudaError_t cudaStreamDestroy(cudaStream_t stream) { return synchronize(stream), cudaSuccess; }  // its queue's thread keeps it
API cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) { return *priority = (size_t)stream > 2 ? stream->priority : 0, cudaSuccess; }
API cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return synchronize(stream), cudaSuccess; }
API cudaError_t cudaDeviceSynchronize() { return synchronize_all(), cudaSuccess; }
API int cuCtxSynchronize() { return synchronize_all(), ok; }
API int cuStreamSynchronize(cudaStream_t stream) { return synchronize(stream), ok; }
static cudaError_t query(Moment moment) {
  std::lock_guard<std::mutex> guard(mutex);
  return moment.queue && moment.queue->done < moment.number ? cudaErrorNotReady : cudaSuccess;
}
API cudaError_t cudaStreamQuery(cudaStream_t stream) {
  Queue *queue = queue_of(stream);
  return query({queue, queue->submitted});
}
API cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t call, void *data) {
  if (is_capturing()) record([=] { call(data); });
  else submit(stream, [=] { call(data); });
  return cudaSuccess;
}
API cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t call, void *data, unsigned) {
  return submit(stream, [=] { call(stream, cudaSuccess, data); }), cudaSuccess;
}

// ---- events
API cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned) { return *event = new CUevent_st, cudaSuccess; }
API cudaError_t cudaEventCreate(cudaEvent_t *event) { return *event = new CUevent_st, cudaSuccess; }
API cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete event, cudaSuccess; }
API cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  event->seconds = now();
  std::lock_guard<std::mutex> guard(mutex);
  Queue *queue = queue_of(stream);
  event->moment = {queue, queue->submitted};
  return cudaSuccess;
}
API cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) { return cudaEventRecord(event, stream); }
API cudaError_t cudaEventQuery(cudaEvent_t event) { return query(event->moment); }
API cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (event->moment.queue && !is_executing) run(event->moment.queue, event->moment.number);
  return cudaSuccess;
}
API cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (is_late() && query(event->moment)) push(queue_of(stream), {nullptr, event->moment, now()});
  return cudaSuccess;
}
API cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t first, cudaEvent_t last) {
  if (first->seconds < 0 || last->seconds < 0) return cudaErrorInvalidResourceHandle;
  return *ms = (float)((last->seconds - first->seconds) * 1e3), cudaSuccess;
}
// Another process cannot wait for a place in our queues.
API cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t *handle, cudaEvent_t event) { return *handle = {}, cudaEventSynchronize(event); }
API cudaError_t cudaIpcOpenEventHandle(cudaEvent_t *event, cudaIpcEventHandle_t) { return cudaEventCreate(event); }
