"""What our adapters use of other packages is in their sources: of verifiers in its newest release with
`load_environment`, of gymnasium in what is installed."""

from __future__ import annotations

import ast

from tests.contracts.source import Package
from tests.contracts.uses import check_call, sources, uses_of

ADAPTER = "rollout/endpoint/adapters/play_verifiers.py"
OURS = {"get_dataset", "run_rollout", "requires_group_rollouts"}


def test_the_names_that_it_takes_of_verifiers_are_there(verifiers: Package) -> None:
    """They are imported as they are asked for, by a table."""
    [table] = [
        node.value
        for node in ast.walk(verifiers.tree("verifiers") or ast.Module([], []))
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_LAZY_IMPORTS"
    ]
    where = ast.literal_eval(table)
    uses = list(uses_of(ADAPTER, "verifiers"))
    assert {use.name for use in uses} == {"load_environment", "OpenAIChatCompletionsClient"}
    calls = {use.name: use.call for use in uses if use.call is not None}
    check_call(verifiers.get(where["load_environment"]), calls["load_environment"])
    assert "Client" in {ast.unparse(base) for base in _bases(verifiers, where["OpenAIChatCompletionsClient"])}


def _bases(package: Package, name: str) -> list[ast.expr]:
    """Of a class, without the types that they are of."""
    node = package.get(name).node
    assert isinstance(node, ast.ClassDef)
    return [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]


def test_an_environment_is_played_as_it_wants_to_be(verifiers: Package) -> None:
    environment = verifiers.get("verifiers.envs.environment:Environment")
    uses = [use for receiver in ("world", "loaded") for use in uses_of(ADAPTER, receiver)]
    assert {use.name for use in uses} == OURS
    for use in uses:
        member = environment.members[use.name]
        if use.call is not None:
            check_call(member, use.call, method=True)
    # One of the base class runs and scores; what it is given as a client may be one, and is not made anew.
    assert "client_or_config" in ast.unparse(verifiers.get("verifiers.clients:resolve_client").node)
    assert "isinstance(client_or_config, Client)" in ast.unparse(verifiers.get("verifiers.clients:resolve_client").node)
    client = verifiers.get("verifiers.clients.client:Client")
    assert "isinstance(client_or_config, ClientConfig)" in ast.unparse(client.members["__init__"].node)


def test_what_comes_back_has_the_keys_that_are_read(verifiers: Package) -> None:
    read = {
        node.args[0].value
        for node in ast.walk(sources()[ADAPTER])
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) == "said.get"
        and isinstance(node.args[0], ast.Constant)
    }
    told = ast.unparse(verifiers.get("verifiers.utils.save_utils:state_to_output").node)
    assert read == {"error", "metrics"} and all(f"{key}=state" in told for key in ("reward", *read))
    # tests/unit/rollout/endpoint/test_server.py: these words mean a rollout that is too long, which is scored.
    handler = verifiers.get("verifiers.clients.openai_chat_completions_client:handle_openai_overlong_prompt")
    assert "'context length'" in ast.unparse(handler.node) and "raise OverlongPromptError" in ast.unparse(handler.node)


def test_gymnasium_has_what_the_adapter_calls(installed: Package) -> None:
    assert installed.find("gymnasium.envs.registration", "make") is not None
    assert {"reset", "step", "close"} <= set(installed.get("gymnasium.core:Env").members)
    assert "seed" in installed.get("gymnasium.core:Env").members["reset"].signature.parameters
    assert {"n", "start"} <= set(installed.get("gymnasium.spaces.discrete:Discrete").members)
