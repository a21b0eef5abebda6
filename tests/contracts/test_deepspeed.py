"""Names, arguments and config keys of DeepSpeed, including GPU-only ones: offload, bfloat16, its operators."""

import ast
import re

import pytest

from tests.contracts.source import Package
from tests.contracts.uses import Use, check_call, find_uses, imports, missing_imports, our_package, sources, wrong_uses

_FILE = "models/deepspeed.py"
_LIBRARY = [
    (prefix + use.name, use)
    for path in sources()
    for prefix in ("", "zero.")
    for name in ("self._deepspeed", "deepspeed")
    for use in (find_uses(path, f"{name}.{prefix}".rstrip(".")) if path.startswith("models/") else [])
    if use.call is not None
]


def test_imported_names_exist_with_expected_arguments(installed: Package) -> None:
    assert (
        list(imports("deepspeed"))
        and missing_imports("deepspeed", installed) + wrong_uses("deepspeed", installed) == []
    )


@pytest.mark.parametrize(("name", "use"), _LIBRARY, ids=[name for name, _ in _LIBRARY])
def test_called_functions_take_expected_arguments(installed: Package, name: str, use: Use) -> None:
    assert use.call is not None
    check_call(installed.get(f"deepspeed:{name}"), use.call)


def test_initialize_and_zero_init_exist() -> None:
    assert {name for name, _ in _LIBRARY} >= {"initialize", "init_distributed", "zero.Init"}


def test_partitioned_parameters_have_expected_attributes(installed: Package) -> None:
    read_names = {
        word
        for path, tree in sources().items()
        for node in ast.walk(tree)
        if path.startswith("models/") and isinstance(node, ast.Attribute | ast.Constant)
        for word in [getattr(node, "attr", None) or getattr(node, "value", None)]
        if isinstance(word, str) and re.fullmatch(r"ds_[a-z]+", word)
    }
    text = ast.unparse(installed.tree("deepspeed.runtime.zero.partition_parameters") or ast.Pass())
    assert read_names and [name for name in sorted(read_names) if f"param.{name} = " not in text] == []


def test_engine_has_expected_attributes(installed: Package) -> None:
    engine = installed.get("deepspeed.runtime.engine:DeepSpeedEngine")
    uses = list(find_uses(_FILE, "self.engine"))
    assert {use.name for use in uses} >= {"backward", "step", "get_global_grad_norm"}
    # torch.nn.Module would register this attribute as a submodule.
    assert "self.__dict__['module'] = model" in ast.unparse(engine.node)
    for use in uses:
        assert use.name in {*engine.members, "module"}, use.place
        if use.call is not None:
            check_call(engine.members[use.name], use.call, method=True)


def test_config_keys_are_read(installed: Package) -> None:
    """DeepSpeed ignores unknown keys, except in zero_optimization."""
    keys = {
        key.value
        for node in ast.walk(our_package().get("slurm_rl.models.deepspeed:_build_config").node)
        for key in (node.keys if isinstance(node, ast.Dict) else [getattr(node, "slice", None)])
        if isinstance(key, ast.Constant)
    } - {"optimizer", "all"}
    assert keys > {"zero_optimization", "bf16", "pin_memory"}
    places = ["deepspeed.runtime.constants", "deepspeed.runtime.precision_config", "deepspeed.runtime.zero.config"]
    read = {
        node.value
        for module in places
        for node in ast.walk(installed.tree(module) or ast.Pass())
        if isinstance(node, ast.Constant)
    }
    for name in (
        "deepspeed.runtime.zero.config:DeepSpeedZeroConfig",
        "deepspeed.runtime.zero.offload_config:DeepSpeedZeroOffloadOptimizerConfig",
        "deepspeed.runtime.zero.offload_config:DeepSpeedZeroOffloadParamConfig",
        "deepspeed.runtime.precision_config:DeepSpeedBF16Config",
    ):
        read |= {field.name for field in installed.get(name).fields()}
    assert (keys | {"offload_optimizer", "offload_param"}) - read == set()


def test_torch_pins_memory(installed: Package) -> None:
    """DeepSpeed's own pinning compiles C++ at the start of a run."""
    text = ast.unparse(installed.tree("deepspeed.utils.pin_memory") or ast.Pass())
    assert "os.environ.get('DS_PIN_MEMORY_BACKEND', 'torch')" in text


def test_shared_memory_all_reduce_is_cpu_only(installed: Package) -> None:
    """On GPUs this skips the check for compilable operators, which needs a compiler and many seconds."""
    builders = installed.root / "deepspeed/ops/op_builder"
    with_it = [one.name for one in builders.iterdir() if one.suffix == ".py" and "ShareMemComm" in one.read_text()]
    assert with_it == [] and "ShareMemCommBuilder" in (builders / "cpu/comm.py").read_text()
