"""Every import, call and attribute that we use from vLLM exists in its CUDA build."""

import ast
import re

import pytest

from slurm_rl.config.engine_args import OURS
from slurm_rl.config.train import RolloutConfig
from slurm_rl.rollout.vllm.engine import choose_load
from tests.contracts.source import Package, ResolvedName
from tests.contracts.uses import (
    Use,
    calls_by_name,
    check_call,
    classes_over,
    find_uses,
    imported_uses,
    imports,
    missing_imports,
    names_that_we_set,
    our_class,
    our_package,
    unaccepted_names,
    wrong_uses,
)

OBJECTS = [
    # (our file, expression in it, vLLM object)
    ("rollout/vllm/engine.py", "self.llm", "vllm:LLM"),
    ("rollout/vllm/engine.py", "self.llm.llm_engine", "vllm:LLMEngine"),
    ("rollout/vllm/async_engine.py", "self.llm", "vllm.v1.engine.async_llm:AsyncLLM"),
    ("rollout/vllm/async_engine.py", "output", "vllm:RequestOutput"),
    ("rollout/vllm/outputs.py", "output", "vllm:RequestOutput"),
    ("rollout/vllm/outputs.py", "one", "vllm:RequestOutput"),
    ("rollout/vllm/outputs.py", "build/item", "vllm:CompletionOutput"),
    ("rollout/vllm/outputs.py", "_decode/item", "vllm:CompletionOutput"),
    ("rollout/vllm/outputs.py", "span", "vllm.outputs:WeightVersionSpan"),
    ("rollout/vllm/outputs.py", "step[token]", "vllm.logprobs:Logprob"),
    ("rollout/vllm/vision_inputs.py", "output", "vllm:RequestOutput"),
    ("rollout/vllm/worker_extension.py", "RolloutWorkerExtension/self", "vllm.v1.worker.gpu_worker:Worker"),
    ("rollout/vllm/adapters.py", "manager", "vllm.lora.model_manager:LRUCacheLoRAModelManager"),
    ("rollout/vllm/adapters.py", "adapter", "vllm.lora.lora_model:LoRAModel"),
    ("rollout/vllm/transfer.py", "meta", "vllm.distributed.weight_transfer.base:ParamMeta"),
]
WORKER = "vllm.v1.worker.gpu_worker:Worker"
EXTENSION = "slurm_rl.rollout.vllm.worker_extension:RolloutWorkerExtension"


def find_mismatch(found: ResolvedName, use: Use) -> str | None:
    """Return the part of the use that the member does not accept; None if it accepts all."""
    name, _, _ = use.name.partition(".")
    if name not in found.members:
        return f"{use.place}: {found} has no {name}"
    member = found.members[name]
    if use.call is None or not isinstance(member.node, ast.FunctionDef | ast.AsyncFunctionDef):
        return None
    try:
        check_call(member, use.call, method=True)
    except TypeError as error:
        return f"{use.place}: {found}.{name}: {error}"
    return None


def assigned_names(cls: ResolvedName) -> set[str]:
    """Return the methods and assigned attributes of our class; bare annotations belong to the class it is
    mixed with.
    """
    return cls.assigned | {name for name, found in cls.members.items() if isinstance(found.node, ast.FunctionDef)}


def test_imported_names_exist(vllm: Package) -> None:
    assert len(list(imports("vllm"))) > 10 and missing_imports("vllm", vllm) == []


def test_imported_calls_match_signatures(vllm: Package) -> None:
    assert len([use for use, _ in imported_uses("vllm") if use.call]) > 5 and wrong_uses("vllm", vllm) == []


@pytest.mark.parametrize(("path", "expression", "name"), OBJECTS, ids=lambda value: str(value).rpartition("/")[2])
def test_objects_have_expected_attributes(vllm: Package, path: str, expression: str, name: str) -> None:
    # `self` is both, so exclude the members of our class.
    own = assigned_names(our_class(path, expression.partition("/")[0])) if expression.endswith("/self") else set()
    uses = [use for use in find_uses(path, expression) if use.name not in own]
    assert uses, f"slurm_rl/{path} has no {expression} any more: change the row"
    assert [wrong for use in uses if (wrong := find_mismatch(vllm.get(name), use))] == []


def test_subclasses_match_signatures(vllm: Package) -> None:
    wrong, pairs = [], list(classes_over("vllm"))
    assert len(pairs) > 4
    for path, cls, module, name in pairs:
        base, own = vllm.get(f"{module}:{name}").members, our_class(path, cls).members
        for method, member in base.items():
            if "abstractmethod" in ast.unparse(member.node).partition("def ")[0] and method not in own:
                wrong.append(f"slurm_rl/{path}: {cls} must have {method}")
        same = {method for method in base.keys() & own if isinstance(base[method].node, ast.FunctionDef)} - {"__init__"}
        for here, there in ((own[method].signature, base[method].signature) for method in sorted(same)):
            if list(here.parameters) != list(there.parameters):
                wrong.append(f"slurm_rl/{path}: {cls} has a method of {here}, {name} one of {there}")
        uses = find_uses(path, f"{cls}/self")
        wrong += [f"{use.place}: neither {cls} nor {name} has {use.name}" for use in uses if use.name not in own | base]
    assert wrong == []


def test_workers_have_methods_called_by_name(vllm: Package) -> None:
    members = vllm.get(WORKER).members | our_package().get(EXTENSION).members
    calls = list(calls_by_name("rollout/vllm/", {"collective_rpc", "_call"}))
    assert {name for _, name, _, _ in calls} >= {"update_weights", "watch_transfer", "transfer_checksum"}
    for place, name, keys, count in calls:
        assert name in members, f"{place}: neither vLLM's worker nor our extension has {name}"
        assert unaccepted_names(members[name], keys, method=True) == set(), f"{place}: {name}{members[name].bound}"
        members[name].bound.bind_partial(*[None] * count)
    for transfer in ("ray", "adapters"):
        members[choose_load(RolloutConfig(weight_transfer=transfer))[0]].bound.bind(None)


def test_worker_extension_has_no_name_collision(vllm: Package) -> None:
    """vLLM refuses to start otherwise (init_worker in vllm/v1/worker/worker_base.py)."""
    worker, extension = vllm.get(WORKER), our_package().get(EXTENSION)
    own = assigned_names(extension)
    assert own and not own & set(worker.members)
    declared = set(extension.members) - own
    assert declared <= set(worker.members), "what the extension says that the worker has, it must have"


def test_transfer_client_fits_vllm_senders(vllm: Package) -> None:
    client = our_package().get("slurm_rl.rollout.vllm.transfer:EngineClient")
    for name, member in vllm.get("vllm.distributed.weight_transfer.base:VLLMWeightSyncClient").members.items():
        assert list(client.members[name].signature.parameters) == list(member.signature.parameters), name


def test_sender_takes_address_port_and_size_in_order(vllm: Package) -> None:
    """transfer.py passes the first two by *args, so the call does not show them."""
    info = vllm.get("vllm.distributed.weight_transfer.nccl_engine:NCCLTrainerInitInfo").signature
    assert list(info.parameters)[:3] == ["master_address", "master_port", "world_size"]


def test_engine_arguments_are_fields(vllm: Package) -> None:
    """LLM() passes unknown arguments to EngineArgs; those of the user are compared with the fields when a run
    starts.
    """
    fields = set(vllm.get("vllm:EngineArgs").signature.parameters)
    assert set(OURS) - fields == set()
    assert "kwargs" in vllm.get("vllm:LLM").signature.parameters
    for use, _ in imported_uses("vllm"):
        if use.name == "LLM" and use.call is not None:
            assert {word.arg for word in use.call.keywords if word.arg} <= fields


def test_sampling_fields_exist(vllm: Package) -> None:
    spec = set(our_package().get("slurm_rl.data.groups:SamplingSpec").signature.parameters) - {
        "num_completions",
        "batch",
    }
    assert "temperature" in spec
    assert unaccepted_names(vllm.get("vllm:SamplingParams"), spec | {"n", "seed"}) == set()


def test_set_variables_are_vllm_variables(vllm: Package) -> None:
    table = vllm.get("vllm.envs:environment_variables").node
    known = {key.value for key in ast.walk(table) if isinstance(key, ast.Constant)}
    names = {name for name in names_that_we_set() if re.fullmatch(r"VLLM_\w*[A-Z0-9]", name)}
    assert "VLLM_WORKER_MULTIPROC_METHOD" in names and names - known == set()
