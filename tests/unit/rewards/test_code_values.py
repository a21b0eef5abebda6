import json
from functools import partial

import pytest

from slurm_rl.rewards import code_answer

score_code = partial(code_answer.score_code, total_s=60.0, test_timeout_s=20.0)

POINT = """
class f:
    def __init__(self, x): self.x = x
    def __eq__(self, other): return self.x == other.x
    def __hash__(self): return self.x
    def __lt__(self, other): return self.x < other.x
    def __add__(self, other): return f(self.x + other.x)
    def __mul__(self, k): return f(self.x * k)
    __rmul__ = __mul__
    def __iadd__(self, other): self.x += other.x; return self
    def __repr__(self): return f'f({self.x})'
    def __len__(self): return self.x
    def __getitem__(self, i):
        if i >= self.x: raise IndexError
        return i
    def __setitem__(self, i, value): self.x = value
"""
NODE = """
class Node:
    def __init__(self, value): self.value = value; self.next = None
def f(node):
    count = 0
    while node: count += 1; node = node.next
    return count
"""
MATRIX = "def f(n): return [[0] * n for _ in range(n)]"
ALIASED = "def f(n): return [[0] * n] * n"


@pytest.mark.parametrize(
    ("code", "checks", "score"),
    [
        # Iterators, views and ranges are as lazy and as unequal to lists as in Python.
        ("def f(n):\n    for i in range(n): yield i", "assert list(f(3)) == [0, 1, 2] and next(f(3)) == 0", 1.0),
        ("def f(n):\n    for i in range(n): yield i", "assert f(3) == [0, 1, 2]", 0.0),
        ("import itertools\ndef f(): return itertools.count()", "g = f()\nassert [next(g), next(g)] == [0, 1]", 1.0),
        ("def f(n): return map(str, range(n))", "assert sorted(f(2)) == ['0', '1']", 1.0),
        ("def f(n): return range(n)", "assert f(3) == range(3) and len(f(3)) == 3 and f(3)[1] == 1", 1.0),
        ("def f(n): return range(n)", "assert f(3) == [0, 1, 2]", 0.0),
        ("def f(d): return d.keys()", "assert f({1: 2}) == {1} and 1 in f({1: 2})", 1.0),
        ("def f(d): return d.items()", "assert sorted(f({1: 2})) == [(1, 2)]", 1.0),
        ("def f(d): return d.values()", "assert list(f({1: 2})) == [2]", 1.0),
        ("def f(x): return sum(x)", "assert f(iter([1, 2])) == f(i for i in (1, 2)) == f({3: 0}.keys()) == 3", 1.0),
        # Values of the standard library.
        ("from collections import deque\ndef f(): return deque([1, 2], maxlen=2)",
         "from collections import deque\nassert f() == deque([1, 2]) and f().maxlen == 2 and f() != [1, 2]", 1.0),
        ("from fractions import Fraction\ndef f(): return Fraction(1, 2)",
         "from fractions import Fraction\nassert f() == Fraction(1, 2) == 0.5 and isinstance(f(), Fraction)", 1.0),
        ("from decimal import Decimal\ndef f(): return Decimal('0.10')",
         "from decimal import Decimal\nassert f() == Decimal('0.1') and str(f()) == '0.10'", 1.0),
        ("import datetime as d\ndef f(): return [d.date(2020, 1, 2), d.time(1), d.timedelta(3),"
         " d.datetime(2020, 1, 2, 3, tzinfo=d.timezone.utc)]",
         "import datetime as d\nassert f() == [d.date(2020, 1, 2), d.time(1), d.timedelta(3),"
         " d.datetime(2020, 1, 2, 3, tzinfo=d.timezone.utc)]", 1.0),
        ("from collections import *\ndef f(s): return Counter(s), OrderedDict(a=1), defaultdict(list)",
         "a, b, c = f('aab')\nassert a.most_common(1) == [('a', 2)] and list(b) == ['a'] and c[3] == []", 1.0),
        ("from collections import namedtuple\nP = namedtuple('P', 'x y')\ndef f(): return P(1, 2)",
         "assert f() == (1, 2) and f().x == 1", 1.0),
        # User-defined classes compare by their own methods.
        (POINT, "assert f(1) == f(1) and f(1) != f(2) and not f(1) == f(2) and {f(1), f(1)} == {f(1)}", 1.0),
        (POINT, "assert f(1) + f(2) == f(3) and f(2) * 3 == 3 * f(2) == f(6) and sorted([f(2), f(1)])[0] == f(1)", 1.0),
        (POINT, "x = f(1)\nx += f(2)\nassert x.x == 3 and repr(x) == 'f(3)' and str(x) == 'f(3)'", 1.0),
        (POINT, "assert len(f(4)) == 4 and f(3)[1] == 1 and list(f(3)) == [0, 1, 2] and 2 in f(3) and not f(0)", 1.0),
        (POINT, "x = f(1)\nx[0] = 5\nassert x.x == 5\nx.x = 7\nassert x.x == 7 and isinstance(x, f)", 1.0),
        (POINT, "assert f(1) == f(2)", 0.0),
        (NODE, "a = Node(1)\na.next = Node(2)\nassert f(a) == 2", 1.0),
        ("class E(ValueError): pass\ndef f(): raise E('no')",
         "try:\n    f()\nexcept ValueError as error:\n    assert str(error) == 'no'\nelse:\n    assert False", 1.0),
        # A list shared by two references stays one list.
        ("def f(x): return x", "x = [1]\nassert f(x) is x", 1.0),
        ("def f(x): return list(x)", "x = [1]\nassert f(x) is x", 0.0),
        ("def f(x): x[0].sort()", "row = [3, 1]\nx = [row]\nf(x)\nassert row == [1, 3] and x[0] is row", 1.0),
        ("def f(x, y): x.append(1); return y", "x = []\nassert f(x, x) == [1]", 1.0),
        (MATRIX, "x = f(2)\nx[0][0] = 1\nassert x[1][0] == 0", 1.0),
        (ALIASED, "x = f(2)\nx[0][0] = 1\nassert x[1][0] == 0", 0.0),
        ("def f():\n    x = []\n    x.append(x)\n    return x", "x = f()\nassert x[0] is x", 1.0),
        # Neither side inherits `from __future__ import annotations`.
        ("def f(x: int): return f.__annotations__['x'] is int", "assert f(1)", 1.0),
    ],
)  # fmt: skip
def test_score_code_compares_values_like_python(code: str, checks: str, score: float) -> None:
    tests = json.dumps({"asserts": [checks], "functions": ["f", "Node"]})
    assert score_code(code, tests) == score


LIAR = "class f:\n    def __init__(self, *args): pass\n    def __eq__(self, other): return True\n"


@pytest.mark.parametrize(
    ("code", "check"),
    [
        (LIAR, "assert f(1) == 2"),
        (LIAR, "assert [f(1)] == [2]"),
        (LIAR, "assert {'a': f(1)} == {'a': 2}"),
        (LIAR + "    def __contains__(self, item): return True", "assert 2 in f(1)"),
        (LIAR + "    def __lt__(self, other): return True", "assert f(1) < 2"),
        (LIAR + "    def __sub__(self, other): return 0\n    def __rsub__(self, other): return 0",
         "assert abs(f(1) - 2) < 1e-6 or abs(2 - f(1)) < 1e-6"),
        (LIAR + "    def __sub__(self, other): return self\n    def __abs__(self): return 0\n"
         "    def __float__(self): return 0.0\n    def __lt__(self, other): return True",
         "assert abs(f(1) - 2) < 1e-6"),
    ],
)  # fmt: skip
def test_score_code_of_always_equal_class_is_zero(code: str, check: str) -> None:
    assert score_code(code, json.dumps({"asserts": [check], "functions": ["f"]})) == 0.0


DEEP = """
import sys
from functools import lru_cache
sys.setrecursionlimit(10**6)
@lru_cache(None)
def count(n): return 0 if n == 0 else 1 + count(n - 1)
print(count(50_000))
"""


@pytest.mark.parametrize(
    ("program", "output"),
    [
        ("print(len(str(2 ** 20_000)))", "6021"),  # Python's own limit is 4,300 digits
        (DEEP, "50000"),  # overflows a stack of 8 MB
        ("import resource\nresource.setrlimit(resource.RLIMIT_STACK, (2 ** 28, -1))\nprint(1)", "1"),
        (
            "import threading\nthreading.stack_size(2 ** 28)\nt = threading.Thread(target=print, args=(1,))\nt.start()",
            "1",
        ),
        ("print(open('/dev/stdin').read().strip())", "7"),
        ("print(open(0).read().strip())", "7"),
    ],
)
def test_score_code_near_python_limits_is_one(program: str, output: str) -> None:
    assert score_code(program, json.dumps({"stdio": [{"stdin": "7\n", "stdout": output}]})) == 1.0
