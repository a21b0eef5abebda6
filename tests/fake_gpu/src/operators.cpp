// Operators of torch for CUDA by their CPU kernels: tensors of the fake device are host memory.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>

using c10::IValue;
using torch::jit::Stack;
extern "C" {
bool fake_gpu_is_capturing();
void fake_gpu_record(void (*call)(void *), void (*drop)(void *), void *data);
bool fake_gpu_zero(void *address, size_t bytes);
bool fake_gpu_is_late();
bool fake_gpu_is_pinned(const void *address);
void fake_gpu_submit(void *stream, void (*call)(void *), void *data);
void fake_gpu_synchronize(void *stream);
}

static const bool dry = getenv("FAKE_GPU_DRY");
constexpr size_t dry_bytes = 1 << 16;

// These only move pointers and sizes, or allocate, and work as they are.
static const std::set<std::string> unchanged = {
    "empty.memory_format", "empty_strided", "set_", "set_.source_Storage", "set_.source_Storage_storage_offset",
    "set_.source_Tensor", "resize_", "as_strided", "view", "_reshape_alias", "alias", "unfold", "view_as_real",
    "view_as_complex", "record_stream", "is_pinned", "_pin_memory", "_to_copy", "is_set_to", "_fused_sdp_choice"};

static at::Tensor to_host(const at::Tensor &t) {  // the same memory
  if (!t.defined() || !t.is_cuda() || t.is_sparse()) return t;
  c10::InferenceMode off(false);
  auto host = at::from_blob(t.data_ptr(), t.sizes(), t.strides(), at::TensorOptions().dtype(t.dtype()).device(at::kCPU));
  if (t.is_conj()) host = host.conj();
  return t.is_neg() ? at::_neg_view(host) : host;
}

// A CPU generator whose draws depend on seed and offset of the CUDA generator, so that its saved state restores them.
static at::Generator to_host(at::Generator of) {
  uint64_t offset = of.get_offset();
  auto host = at::detail::createCPUGenerator(of.current_seed() * 0x9E3779B97F4A7C15ull + offset);
  of.set_offset(offset + 4);
  return host;
}

static IValue to_host(const IValue &v) {
  if (v.isTensor()) return to_host(v.toTensor());
  if (v.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor &t : v.toTensorVector()) list.push_back(to_host(t));
    return list;
  }
  if (v.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor> &t : v.toOptionalTensorList()) list.push_back(t ? std::optional(to_host(*t)) : std::nullopt);
    return list;
  }
  if (v.isDevice() && v.toDevice().is_cuda()) return c10::Device(at::kCPU);
  if (v.isGenerator()) return v.toGenerator().device().is_cuda() ? IValue(to_host(v.toGenerator())) : v;
  return v;
}

static bool is_same(const at::Tensor &a, const at::Tensor &b) {
  return a.numel() && a.data_ptr() == b.data_ptr() && a.sizes() == b.sizes() && a.strides() == b.strides() && a.dtype() == b.dtype();
}

// Move a result to the device. `kept` gets pairs of a device tensor and its place, for a replay.
static at::Tensor to_device(const at::Tensor &result, const std::vector<at::Tensor> &inputs, c10::Device device, std::vector<at::Tensor> &kept) {
  if (!result.defined() || result.is_cuda()) return kept.emplace_back(), result;
  for (const at::Tensor &t : inputs)
    if (t.defined() && t.is_cuda() && is_same(t, result)) return kept.emplace_back(), t;
  auto moved = at::empty_strided(result.sizes(), result.strides(), result.options().device(device));
  if (result.numel()) to_host(moved).copy_(result);
  return kept.push_back(to_host(moved)), moved;
}

struct Replay {
  c10::OperatorHandle op;
  std::vector<IValue> arguments;
  std::vector<at::Tensor> results;  // where each tensor result goes; undefined: it is an argument
};
static void replay(void *data) {
  auto &one = *(Replay *)data;
  c10::InferenceMode guard;
  Stack stack = one.arguments;
  one.op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
  size_t next = 0;
  auto put = [&](const at::Tensor &t) {
    at::Tensor &to = one.results.at(next++);
    if (to.defined() && to.numel()) to.copy_(t);
  };
  for (IValue &v : stack) {
    if (v.isTensor()) put(v.toTensor());
    else if (v.isTensorList())
      for (const at::Tensor &t : v.toTensorVector()) put(t);
  }
}

// ---- dry mode: work on large tensors is dropped. Late mode: the results have the sizes of the meta kernel, and a stream computes them later
static size_t bytes_of(const IValue &v) {
  size_t most = 0;
  auto see = [&](const at::Tensor &t) { most = std::max(most, t.defined() ? (size_t)t.numel() * t.element_size() : 0); };
  if (v.isTensor()) see(v.toTensor());
  else if (v.isTensorList())
    for (const at::Tensor &t : v.toTensorVector()) see(t);
  return most;
}

static void run_queued(void *data) {
  std::unique_ptr<Replay> one((Replay *)data);
  try {
    replay(one.get());
  } catch (const std::exception &error) {
    fprintf(stderr, "[fake-gpu] %s failed on its stream: %s\n", one->op.schema().operator_name().name.c_str(), error.what());
    _exit(2);
  }
}

static at::Tensor to_meta(const at::Tensor &t) {
  if (!t.defined()) return t;
  return at::empty_strided(t.sizes(), t.strides(), at::TensorOptions().dtype(t.dtype()).device(at::kMeta));
}
static IValue to_meta(const IValue &v) {
  if (v.isTensor()) return to_meta(v.toTensor());
  if (v.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor &t : v.toTensorVector()) list.push_back(to_meta(t));
    return list;
  }
  if (v.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor> &t : v.toOptionalTensorList()) list.push_back(t ? std::optional(to_meta(*t)) : std::nullopt);
    return list;
  }
  if (v.isDevice()) return c10::Device(at::kMeta);
  return v.isGenerator() ? IValue() : v;
}

// A copy that waits for its stream although one side is plain host memory would read it too late.
static bool is_copied_late(const std::vector<IValue> &given) {
  for (int i : {0, 1}) {
    const at::Tensor t = given[i].toTensor();
    if (!t.is_cuda() && !(given[2].toBool() && fake_gpu_is_pinned(t.data_ptr()))) return false;
  }
  return true;
}

// Queue an operator, or in dry mode drop it; false: it must run now, since its results depend on values, or go to the host.
static bool run_later(const c10::OperatorHandle &op, Stack *stack, std::vector<IValue> &given, c10::Device where, void *stream, bool is_dry) {
  const auto &schema = op.schema();
  const bool is_copy = schema.name() == "aten::copy_";
  if (is_copy && !is_dry && !is_copied_late(given)) return false;
  bool is_new = false;
  for (const auto &result : schema.returns()) {
    if (result.alias_info() && !result.alias_info()->isWrite()) return false;
    is_new |= !result.alias_info();
  }
  for (size_t i = 0; i < given.size(); i++)
    if (schema.arguments()[i].is_out() && (!is_dry || !given[i].isTensor() || !given[i].toTensor().numel())) return false;
  std::vector<IValue> results;
  if (is_new) {
    if (!op.hasComputedKernelForDispatchKey(c10::DispatchKey::Meta)) return false;
    try {
      c10::InferenceMode guard;
      Stack shapes;
      for (const IValue &v : given) shapes.push_back(to_meta(v));
      op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &shapes);
      results.assign(shapes.begin(), shapes.end());
    } catch (const std::exception &) {
      return false;
    }
    for (const IValue &v : results)
      if (!v.isTensor() && !v.isTensorList()) return false;
  }
  auto work = std::make_unique<Replay>(Replay{op, {}, {}});
  for (const IValue &v : given) {
    if (is_dry) break;
    const bool is_plain = v.isTensor() && v.toTensor().defined() && v.toTensor().is_cpu() && !is_copy;
    work->arguments.push_back(is_plain ? IValue(v.toTensor().clone()) : to_host(v));
  }
  auto allocate = [&](const at::Tensor &meta) {
    if (!meta.defined()) return work->results.emplace_back(), meta;
    auto made = at::empty_strided(meta.sizes(), meta.strides(), meta.options().device(where));
    // A small result of dropped work is read by the host: a finite loss, a norm, "all are finite".
    if (is_dry && made.nbytes() < dry_bytes && made.numel()) to_host(made).fill_(1);
    return work->results.push_back(to_host(made)), made;
  };
  torch::jit::drop(*stack, given.size());
  for (size_t i = 0; i < schema.returns().size(); i++) {
    const auto *alias = schema.returns()[i].alias_info();
    if (alias) {
      size_t j = 0;
      while (!schema.arguments()[j].alias_info() || *schema.arguments()[j].alias_info() != *alias) j++;
      work->results.emplace_back();
      stack->push_back(given[j]);
    } else if (results[i].isTensor()) {
      stack->push_back(allocate(results[i].toTensor()));
    } else {
      c10::List<at::Tensor> list;
      for (const at::Tensor &t : results[i].toTensorVector()) list.push_back(allocate(t));
      stack->push_back(list);
    }
  }
  if (!is_dry) fake_gpu_submit(stream, run_queued, work.release());
  return true;
}

static void run_on_host(const c10::OperatorHandle &op, c10::DispatchKeySet, Stack *stack) {
  const auto &schema = op.schema();
  const size_t count = schema.arguments().size(), begin = stack->size() - count;
  std::vector<IValue> given(stack->begin() + begin, stack->end());
  std::vector<at::Tensor> inputs;
  std::optional<c10::Device> device, named;
  auto see = [&](const at::Tensor &t) {
    inputs.push_back(t);
    if (t.defined() && t.is_cuda() && !device) device = t.device();
  };
  for (const IValue &v : given) {
    if (v.isTensor()) see(v.toTensor());
    else if (v.isTensorList())
      for (const at::Tensor &t : v.toTensorVector()) see(t);
    else if (v.isDevice() && v.toDevice().is_cuda()) named = v.toDevice();
  }
  c10::Device where = named.value_or(device.value_or(c10::Device(at::kCUDA)));
  if (!where.has_index()) where = c10::Device(at::kCUDA, c10::impl::getDeviceGuardImpl(at::kCUDA)->getDevice().index());
  for (size_t i = 0; i < count; i++) {
    const bool is_default = given[i].isNone() && schema.arguments()[i].name() == "generator" && where.is_cuda();
    if (is_default) given[i] = at::globalContext().defaultGenerator(where);
  }
  const bool is_large = std::any_of(given.begin(), given.end(), [](const IValue &v) { return bytes_of(v) >= dry_bytes; });
  if (dry && where.is_cuda() && is_large && run_later(op, stack, given, where, nullptr, true)) return;
  if (fake_gpu_is_late() && where.is_cuda()) {
    void *stream = c10::cuda::getCurrentCUDAStream(where.index()).stream();
    if (run_later(op, stack, given, where, stream, false)) return;
    fake_gpu_synchronize(stream);
  }
  torch::jit::drop(*stack, count);
  for (size_t i = 0; i < count; i++) {
    // The CPU kernel may resize an empty output, which it cannot do with memory that it does not own.
    bool is_grown = schema.arguments()[i].is_out() && given[i].isTensor() && given[i].toTensor().is_cuda() && !given[i].toTensor().numel();
    stack->push_back(is_grown ? IValue(at::empty({0}, at::TensorOptions().dtype(given[i].toTensor().dtype()))) : to_host(given[i]));
  }
  std::vector<IValue> hosts(stack->begin() + begin, stack->end());
  const bool is_captured = fake_gpu_is_capturing();
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  for (size_t i = 0; i < count; i++) {
    if (!schema.arguments()[i].is_out() || !given[i].isTensor() || !given[i].toTensor().defined() || !given[i].toTensor().is_cuda()) continue;
    at::Tensor host = hosts[i].toTensor(), out = given[i].toTensor();
    if (host.sizes() != out.sizes()) {
      out.resize_(host.sizes());
      to_host(out).copy_(host);
      if (is_captured) hosts[i] = to_host(out);
    }
  }
  std::vector<at::Tensor> kept;
  for (size_t i = begin; i < stack->size(); i++) {
    IValue &v = (*stack)[i];
    if (v.isTensor()) {
      size_t j = 0;
      const at::Tensor result = v.toTensor();
      while (j < count && !(given[j].isTensor() && given[j].toTensor().defined() && given[j].toTensor().is_cuda() && hosts[j].isTensor() && result.is_same(hosts[j].toTensor()))) j++;
      if (j < count) kept.emplace_back(), v = given[j];
      else v = to_device(result, inputs, where, kept);
    } else if (v.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor &t : v.toTensorVector()) list.push_back(to_device(t, inputs, where, kept));
      v = list;
    }
  }
  if (is_captured) fake_gpu_record(replay, [](void *data) { delete (Replay *)data; }, new Replay{op, hosts, kept});
}

static void refuse(const c10::OperatorHandle &op, c10::DispatchKeySet, Stack *) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "the fake GPU does not implement ", op.schema().operator_name(), ", which has no CPU kernel");
}

// Large zeros stay sparse: a cache of 60 GB is not written.
static at::Tensor &zero_(at::Tensor &self) {
  size_t bytes = self.nbytes();
  if (bytes >= (1 << 20) && self.is_non_overlapping_and_dense() && !fake_gpu_is_capturing() && !fake_gpu_is_late() && fake_gpu_zero(self.data_ptr(), bytes)) return self;
  auto host = to_host(self);
  if (fake_gpu_is_late())
    return fake_gpu_submit(c10::cuda::getCurrentCUDAStream(self.device().index()).stream(), [](void *data) { std::unique_ptr<at::Tensor>((at::Tensor *)data)->zero_(); }, new at::Tensor(host)), self;
  host.zero_();
  if (fake_gpu_is_capturing())
    fake_gpu_record([](void *data) { ((at::Tensor *)data)->zero_(); }, [](void *data) { delete (at::Tensor *)data; }, new at::Tensor(host));
  return self;
}
static int64_t choose_math(const at::Tensor &, const at::Tensor &, const at::Tensor &, const std::optional<at::Tensor> &, double, bool, std::optional<double>, bool) { return 0; }

extern "C" __attribute__((visibility("default"))) int fake_gpu_install() {
  static torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  auto &dispatcher = c10::Dispatcher::singleton();
  int count = 0;
  for (const auto &name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0)) continue;
    std::string own = name.name.substr(6) + (name.overload_name.empty() ? "" : "." + name.overload_name);
    auto op = dispatcher.findOp(name);
    if (unchanged.count(own) || own == "zero_" || !op || !op->hasSchema()) continue;
    if (!op->hasKernelForDispatchKey(c10::DispatchKey::CUDA) && own != "copy_") continue;
    bool has_host = op->hasKernelForDispatchKey(c10::DispatchKey::CPU) || op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd);
    library.impl(own.c_str(), has_host ? torch::CppFunction::makeFromBoxedFunction<&run_on_host>() : torch::CppFunction::makeFromBoxedFunction<&refuse>());
    count += has_host;
  }
  library.impl("zero_", &zero_);
  library.impl("_fused_sdp_choice", &choose_math);
  return count;
}
