"""flash-attn's functions accept the arguments of transformers, and transformers accepts ours."""

import ast

from tests.contracts.source import Package
from tests.contracts.uses import check_call, imports, sources

_CALLER = "transformers.modeling_flash_attention_utils"
# transformers silently omits arguments that a function does not accept.
_NEEDED = {"dropout_p", "softmax_scale", "causal", "window_size", "softcap", "deterministic"}


def test_imported_names_exist(flash_attn: Package, installed: Package) -> None:
    branch = next(
        node
        for node in ast.walk(installed.get(f"{_CALLER}:_lazy_imports").node)
        if isinstance(node, ast.If) and "flash_attention_2" in ast.unparse(node.test)
    )
    theirs = [
        (node.module or "", alias.name)
        for node in branch.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    assert ("flash_attn", "flash_attn_varlen_func") in theirs
    for module, name in [*theirs, *((module, name) for _, module, name in imports("flash_attn") if name)]:
        assert flash_attn.find(module, name) is not None, f"{module} has no {name}"


def test_transformers_calls_match_signatures(flash_attn: Package, installed: Package) -> None:
    names = {"flash_varlen_fn": "flash_attn_varlen_func", "flash_fn": "flash_attn_func"}
    called = set()
    for node in ast.walk(installed.get(f"{_CALLER}:_flash_attention_forward").node):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in names:
            name = names[ast.unparse(node.func)]
            found = flash_attn.get(f"flash_attn:{name}")
            check_call(found, node)
            lengths = {"max_seqlen_q", "max_seqlen_k"} if "varlen" in name else set()
            assert set(found.signature.parameters) >= _NEEDED | lengths
            called.add(name)
    assert called == set(names.values())


def test_packed_row_arguments_match_transformers(installed: Package) -> None:
    """Unknown names would be dropped silently: packed sequences would attend to each other."""
    passed = {
        node.value
        for node in ast.walk(sources()["models/forward.py"])
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if node.value.startswith(("cu_seq_lens_", "max_length_"))
    }
    assert passed == {"cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"}
    assert passed <= set(installed.get(f"{_CALLER}:_flash_attention_forward").signature.parameters)
