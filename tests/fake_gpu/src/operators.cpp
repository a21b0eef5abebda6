// Operators of torch for CUDA by their CPU kernels: tensors of the fake device are host memory.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <set>
#include <string>

using c10::IValue;
using torch::jit::Stack;
extern "C" {
bool fake_gpu_is_capturing();
void fake_gpu_record(void (*call)(void *), void (*drop)(void *), void *data);
bool fake_gpu_zero(void *address, size_t bytes);
}

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
  if (bytes >= (1 << 20) && self.is_non_overlapping_and_dense() && !fake_gpu_is_capturing() && fake_gpu_zero(self.data_ptr(), bytes)) return self;
  auto host = to_host(self);
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
