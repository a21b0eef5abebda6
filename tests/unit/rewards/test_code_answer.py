import json
from functools import partial

import pytest

from slurm_rl.config.load import load_config
from slurm_rl.config.reward import RewardConfig
from slurm_rl.errors import ConfigError, DataError, RewardError
from slurm_rl.rewards import code_answer
from slurm_rl.rewards.code_answer import same_output
from slurm_rl.rewards.pool import RewardPool
from slurm_rl.rewards.results import RewardItem
from slurm_rl.rewards.sandbox import runs
from slurm_rl.rewards.sandbox.runs import probe_sandbox

# A busy machine may need long to start an interpreter.
score_code = partial(code_answer.score_code, total_s=60.0)

SUM = json.dumps({"stdio": [{"stdin": "1 2\n", "stdout": "3\n"}, {"stdin": "40 2\n", "stdout": "42"}]})
RIGHT = "print(sum(map(int, input().split())))"


def asserts(*checks: str, functions: str = "f", setup: str = "") -> str:
    return json.dumps({"asserts": checks, "functions": functions.split(), "setup": setup})


@pytest.mark.parametrize(
    ("code", "share"),
    [
        (RIGHT, 1.0),
        (f"Here it is:\n```python\n{RIGHT}\n```\nand so on", 1.0),
        ("import threading\ndef main(): " + RIGHT + "\nt = threading.Thread(target=main)\nt.start()", 1.0),
        (f"def main():\n    {RIGHT}\nif __name__ == '__main__':\n    main()\n    exit(0)", 1.0),
        ("import sys\na, b = map(int, sys.stdin.read().split())\nsys.stdout.write(f'{a + b}')", 1.0),
        ("print(3)", 0.5),
        ("print(3); 1 / 0", 0.0),
        ("print(input(), end='')\nraise SystemExit(0)", 0.0),
        ("not python at all", 0.0),
        ("", 0.0),
        ("print(3\0)", 0.0),
    ],
)
def test_program_scores_share_of_correct_outputs(code: str, share: float) -> None:
    assert score_code(code, SUM, score="share") == share
    assert score_code(code, SUM) == float(share == 1.0)


@pytest.mark.parametrize(
    "code",
    [
        "print('passed'); print('1.0'); print('PASS')",
        "import os; os._exit(0)",
        "import sys; sys.exit(0)",
        "import sys\nfor m in [*sys.modules.values()]:\n    m.__dict__.update(passed=2, same_output=lambda *a: True)",
        "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'{\"passed\": true}')\n    except OSError: pass",
        "import gc\nprint([o for o in gc.get_objects() if isinstance(o, dict) and 'asserts' in o] or 'none')",
    ],
)
def test_program_that_claims_success_scores_zero(code: str) -> None:
    assert score_code(code, SUM, score="share") == 0.0


@pytest.mark.parametrize(
    ("code", "check"),
    [
        ("def f(a, b): return a + b", "assert f(1, b=2) == 3"),
        ("def f(x): return (x, [x], {x: {x}}, None, 1.5, True, b'q', 2j)",
         "assert f('a') == ('a', ['a'], {'a': {'a'}}, None, 1.5, True, b'q', 2j)"),
        ("def f(n): return 7 ** n", "assert f(9000) == 7 ** 9000"),
        ("def f(): return float('nan')", "assert f() != f()"),
        ("def f(x): x.sort()", "x = [3, 1, 2]\nf(x)\nassert x == [1, 2, 3]"),
        ("def f(d): d.clear(); d['k'] = 1", "d = {1: 2}\nf(d)\nassert d == {'k': 1}"),
        ("def f(): raise KeyError('no')", "try:\n    f()\nexcept KeyError:\n    pass\nelse:\n    assert False"),
        ("from collections import Counter\ndef f(s): return Counter(s)", "assert f('aab') == {'a': 2, 'b': 1}"),
        ("class f:\n    def __init__(self): self.n = 0\n    def add(self, k): self.n += k; return self",
         "c = f()\nassert c.add(2).add(3).n == 5"),
        ("print('noise ' * 100000)\nimport sys\nsys.stderr.write('x' * 1000000)\ndef f(): return 1", "assert f() == 1"),
        ("f = 12", "assert f == 12"),
        ("def f(x): return round(x * 3, 2)", "assert abs(f(0.1) - 0.3) < 1e-9 and isinstance(f(1.0), float)"),
    ],
)  # fmt: skip
def test_functions_are_checked_by_values(code: str, check: str) -> None:
    assert score_code(code, asserts(check)) == 1.0


LIES = {
    "equal to everything": (
        "class Any:\n    def __eq__(s, o): return True\n    def __bool__(s): return True\ndef f(x): return Any()"
    ),
    "a number that is equal to everything": (
        "class Any(int):\n    def __eq__(s, o): return True\n    __hash__ = int.__hash__\ndef f(x): return Any(5)"
    ),
    "exits as if all was well": "import os\nos._exit(0)",
    "exits in the call": "import os\ndef f(x): os._exit(0)",
    "raises the end of the checks": "def f(x): raise SystemExit(0)",
    "raises what only the checks know": "class CodeGone(BaseException): pass\ndef f(x): raise CodeGone()",
    "redefines builtins": (
        "import builtins\nbuiltins.AssertionError = builtins.abs = lambda *a: 0\nabs = lambda x: 0\ndef f(x): return 99"
    ),
    "writes verdicts on every descriptor": (
        "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'{\"passed\": true}\\n' * 9)\n"
        "    except OSError: pass\ndef f(x): return 99"
    ),
    "answers junk": (
        "import os\ndef f(x):\n    for fd in range(3, 64):\n        try: os.write(fd, b'\\xff' * 100)\n"
        "        except OSError: pass"
    ),
    "answers too much": "def f(x): return 'x' * (64 << 20)",
    "answers nested without end": "def f(x):\n    x = []\n    for _ in range(100000): x = [x]\n    return x",
    "answers a cycle": "def f(x):\n    x = []\n    x.append(x)\n    return x",
    "hangs": "def f(x):\n    while True: pass",
    "returns the checks' own helper": "def f(x): return abs",
}


@pytest.mark.parametrize("name", LIES)
def test_lie_passes_no_assert(name: str) -> None:
    tests = asserts("assert abs(f(1) - 2) < 1e-6", "assert f(1) == 2", "assert f(1) and f(1) == f(2) == 2")
    assert score_code(LIES[name], tests, score="share", test_timeout_s=1.5, total_s=30.0) == 0.0


def test_bare_except_of_check_sees_end_of_code() -> None:
    check = "try:\n    f()\nexcept:\n    pass"
    assert score_code("import os\ndef f(): os._exit(0)", asserts(check), score="share") == 0.0
    assert score_code("def f(): raise OSError('no')", asserts(check), score="share") == 1.0


def test_hang_fails_only_later_asserts() -> None:
    code = "def f(x):\n    while x == 2: pass\n    return x"
    tests = asserts("assert f(1) == 1", "assert f(2) == 2", "assert f(3) == 3")
    assert score_code(code, tests, score="share", test_timeout_s=2.0, total_s=30) == pytest.approx(1 / 3)


def test_setup_of_check_cannot_be_replaced() -> None:
    tests = asserts("check(f)", functions="f check", setup="def check(c):\n    assert c(2) == 4")
    assert score_code("def f(x): return x * x", tests) == 1.0
    assert score_code("def check(c): pass\ndef f(x): return 5", tests) == 0.0


def test_both_kinds_of_tests_count_together() -> None:
    tests = json.dumps({**json.loads(SUM), **json.loads(asserts("assert f(1) == 2", "assert f(2) == 2"))})
    code = "def f(x): return 2\nif __name__ == '__main__':\n    " + RIGHT
    assert score_code(code, tests, score="share") == 1.0
    assert score_code(RIGHT, tests, score="share") == 0.5


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("42", "should be an object"),
        ("{", "Invalid JSON"),
        ("{}", "at least one test"),
        ('{"stdio": [{"stdin": "1"}]}', "stdio.0.stdout: Field required"),
        ('{"stdio": [{"stdin": "", "stdout": "", "x": 1}]}', "stdio.0.x: Extra inputs"),
        ('{"asserts": ["assert f(1)"]}', "need the names of the functions"),
        ('{"asserts": ["assert ("], "functions": ["f"]}', "is not Python"),
    ],
)
def test_unreadable_tests_are_error_never_score(answer: str, words: str) -> None:
    with pytest.raises(DataError, match="needs tests as reference answer") as caught:
        score_code(RIGHT, answer)
    assert words in str(caught.value)


def test_unpassable_tests_are_error() -> None:
    with pytest.raises(DataError, match=r"plain values to the code.*got an argument of the type function"):
        score_code("def f(g): return g(1)", asserts("try:\n    f(lambda x: x)\nexcept BaseException:\n    pass"))
    with pytest.raises(DataError, match=r"must fit reward\.code\.output_mb = 0\.5; got 1\.0 MiB"):
        score_code(RIGHT, json.dumps({"stdio": [{"stdin": "", "stdout": "x" * (1 << 20)}]}), output_mb=0.5)


F = json.dumps({"asserts": ["assert f(2) == 4"], "functions": ["f"]})
SUM_PROGRAM = "a, b = map(int, input().split())\nprint(a + b)"
DOUBLE = "def f(x):\n    return 2 * x"
WRONG = "def f(x):\n    return 3 * x"
IN_LIST = "".join(f"   {line}\n" for line in DOUBLE.split("\n"))


@pytest.mark.parametrize(
    ("completion", "tests", "score"),
    [
        # The output after the program, in a bare or a tagged block, is not the program.
        (f"```python\n{SUM_PROGRAM}\n```\nIt prints:\n```\n3\n```", SUM, 1.0),
        (f"```\n{SUM_PROGRAM}\n```\nIt prints:\n```\n3\n```", SUM, 1.0),
        (f"```python\n{SUM_PROGRAM}\n```\nIt prints:\n```text\n3\n```", SUM, 1.0),
        (f"```python\n{DOUBLE}\n```\nRun it:\n```bash\npython f.py\n```", F, 1.0),
        # An example of use is not the program, whatever its tag.
        (f"```python\n{DOUBLE}\n```\nUse it:\n```python\nprint(f(2))\n```", F, 1.0),
        (f"```\n{DOUBLE}\n```\nUse it:\n```python\nprint(f(2))\n```", F, 1.0),
        (f"```python\n{DOUBLE}\n```\nUse it:\n```python\n>>> f(2)\n4\n```", F, 1.0),
        (f"```python\n{SUM_PROGRAM}\n```\nFor example:\n```python\nprint(1 + 2)\n```", SUM, 1.0),
        # A block in another language is not the program.
        (f"```python\n{DOUBLE}\n```\nIn C:\n```c\nint f(int x) {{ return 2 * x; }}\n```", F, 1.0),
        ("```c\nint f(int x) { return 2 * x; }\n```", F, 0.0),
        # The last version counts, right or wrong; drafts of the reasoning do not.
        (f"```python\n{WRONG}\n```\nNo, it is\n```python\n{DOUBLE}\n```", F, 1.0),
        (f"```python\n{DOUBLE}\n```\nNo, it is\n```python\n{WRONG}\n```", F, 0.0),
        (f"```python\n{DOUBLE}\n```\nNo, it is\n```python\ndef f(x):\n    return (", F, 0.0),
        (f"<think>```python\n{WRONG}\n```</think>\n```python\n{DOUBLE}\n```", F, 1.0),
        (f"<think>\n```python\n{DOUBLE}\n```\n</think>\nAs above.", F, 0.0),
        # Forms of fences.
        (f"1. Double it:\n\n   ```python\n{IN_LIST}   ```\n", F, 1.0),
        (f"- ```python\n{IN_LIST}  ```\n", F, 1.0),
        (f"````python\n{DOUBLE}\n````", F, 1.0),
        (f'````python\n{DOUBLE}\n"""\n```\n"""\n````', F, 1.0),
        (f"~~~python\n{DOUBLE}\n~~~", F, 1.0),
        (f"The program: ```python\n{DOUBLE}\n```", F, 1.0),
        (f"The program: ```\n{DOUBLE}\n```", F, 1.0),
        (f"<answer>```python\n{DOUBLE}\n```</answer>", F, 1.0),
        (f"```Python3 title='f.py'\n{DOUBLE}\n```", F, 1.0),
        (f"```{{.python}}\n{DOUBLE}\n```", F, 1.0),
        (f"```python\r\n{DOUBLE}\r\n```\r\n", F, 1.0),
        (f"Use `f`, in ```fences```.\n```python\n{DOUBLE}\n```", F, 1.0),
        # Unclosed (a stop string may end the completion), closed on the last line, opened by the prompt.
        (f"```python\n{DOUBLE}", F, 1.0),
        (f"```python\n{DOUBLE}```", F, 1.0),
        (f"{DOUBLE}\n```\nIt doubles x.\n```python\nprint(f(2))\n```", F, 1.0),
        (f"```python\n{WRONG}\n```python\n{DOUBLE}\n```", F, 1.0),
        (DOUBLE, F, 1.0),
        # The definition may have other forms.
        ("```python\nf = lambda x: 2 * x\n```\nUse it:\n```python\nprint(f(2))\n```", F, 1.0),
        ("```python\nclass f:\n    def __new__(cls, x): return 2 * x\n```\nUse it:\n```\nf(2)\n```", F, 1.0),
    ],
)
def test_score_code_extracts_program(completion: str, tests: str, score: float) -> None:
    assert score_code(completion, tests) == score


def test_trailing_blanks_of_output_are_ignored() -> None:
    assert same_output("1 2 \n3\n\n", "1 2\n3")
    assert not same_output("1 2\n\n3", "1 2\n3")
    assert not same_output("12", "1 2")


def test_pool_scores_code_with_own_settings() -> None:
    config = RewardConfig.model_validate(
        {"verifiers": {"code": 2.0}, "num_workers": 1, "timeout_s": 30, "code": {"score": "share", "test_timeout_s": 3}}
    )
    codes = [RIGHT, "print(3)", "while True: pass", "import os, signal; os.kill(os.getppid(), 9)"]
    with RewardPool(config) as pool:
        results = pool.score([RewardItem(completion=code, answer=SUM) for code in codes])
    assert [(r.value, r.failure) for r in results] == [(2.0, None), (1.0, None), (0.0, None), (0.0, None)]


def test_test_timeout_must_fit_item_timeout() -> None:
    with pytest.raises(ConfigError, match=r"code\.test_timeout_s must be at most 0\.8 x timeout_s = 3\.2, got 4"):
        load_config(["+exp=demo", "+reward.verifiers.code=1.0", "reward.timeout_s=4"])


def test_probe_names_confinement() -> None:
    words = probe_sandbox()
    assert words["network"] == "seccomp" and words["files"].startswith("Landlock ")


def test_machine_without_confinement_runs_no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def unconfined(*_: object, **__: object) -> None:
        raise RewardError("code must be confined before it runs", seen="the kernel has no Landlock")

    monkeypatch.setattr(runs, "run_program", unconfined)
    with pytest.raises(RewardError, match="no Landlock"):
        probe_sandbox()
