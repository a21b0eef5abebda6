import math

from hypothesis import given
from hypothesis import strategies as st

from slurm_rl.data.groups import Details, Trajectory
from slurm_rl.envs.environment import ToolCall
from slurm_rl.rollout.response import Response

TOKENS = st.tuples(
    st.integers(0, 2**31 - 1), st.floats(max_value=0.0, allow_nan=False), st.integers(-1, 2**31 - 1)
)  # an id, its logprob, the version that sampled it
CALLS = st.lists(st.builds(ToolCall, st.text(), st.text())).map(tuple)


@given(st.lists(TOKENS), st.text(), st.booleans(), st.text(), CALLS)
def test_unpack_restores_every_bit(
    tokens: list[tuple[int, float, int]], text: str, cut: bool, content: str, calls: tuple[ToolCall, ...]
) -> None:
    ids, logprobs = [it for it, _, _ in tokens], [it for _, it, _ in tokens]
    versions = [it for _, _, it in tokens]
    mixed = versions if len(set(versions)) > 1 else []
    version = versions[0] if versions else 3
    details = Details(token_versions=mixed, content=content, calls=calls)
    said = Trajectory(ids, logprobs, text, cut, version, details if details != Details() else None)
    packed = Response.pack(said)
    assert packed.unpack() == said and list(packed.versions()) == said.versions()
    assert [math.copysign(1.0, it) for it in packed.unpack().logprobs] == [math.copysign(1.0, it) for it in logprobs]
