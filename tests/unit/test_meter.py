import re
import threading
from collections.abc import Callable

import pytest

from slurm_rl.run_dir import meter
from slurm_rl.run_dir.meter import Work, measure

DEADLINE_S = 20.0


@pytest.fixture
def many_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter, "EVERY_S", 1e-6)


def polled(values: list[float]) -> tuple[Callable[[], float], threading.Event]:
    """Return a poll of these values, and an event that is set when all of them are shown."""
    left, over = list(values), threading.Event()

    def poll() -> float:
        if len(left) == 1:
            over.set()
        return left.pop(0) if len(left) > 1 else left[0]

    return poll, over


def test_line_shows_name_amount_speed_and_remaining_time() -> None:
    work = Work("model.safetensors", 15.2e9, done=3.1e9)
    assert work.describe(10.0) == "model.safetensors: 3.1 of 15.2 GB, 20%, 310.0 MB/s, 39 s left"
    assert Work("answers", 400, "answers", done=100).describe(50.0) == (
        "answers: 100 of 400 answers, 25%, 2 answers/s, 2 min 30 s left"
    )
    assert Work("x", 5.0).describe(0.0) == "x: 0 of 5 B, 0%, 0 s so far"
    assert Work("x", 10.0, done=12.0).describe(4000.0) == "x: 12 B, 100%, 0 B/s, 0 s left"
    assert work.describe_end(72.0) == "model.safetensors: 3.1 of 15.2 GB done in 1 min 12 s"


@pytest.mark.usefixtures("many_lines")
def test_log_gets_plain_lines_during_and_after_work(capsys: pytest.CaptureFixture[str]) -> None:
    poll, over = polled([1e6, 2e6, 2e6])
    with measure("weights", 4e6, poll=poll):
        assert over.wait(DEADLINE_S)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("weights: 1.0 of 4.0 MB, 25%, ") and lines[1].startswith("weights: 2.0 of 4.0 MB, 50%, ")
    assert re.fullmatch(r"weights: 2.0 of 4.0 MB done in \d+ s", lines[-1])
    assert not set("".join(lines)) & set("\x1b\r")


@pytest.mark.usefixtures("many_lines")
def test_work_of_threads_is_summed(capsys: pytest.CaptureFixture[str]) -> None:
    with measure("files", 400, unit="files") as advance:
        threads = [threading.Thread(target=lambda: [advance(1) for _ in range(100)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert "files: 400 of 400 files done in 0 s" in capsys.readouterr().err


@pytest.mark.usefixtures("many_lines")
def test_failed_work_raises_and_is_not_done(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError), measure("broken", 3):
        raise ZeroDivisionError
    assert " done in " not in capsys.readouterr().err
    assert not [thread for thread in threading.enumerate() if thread.name == "meter"]
