"""Long work says how far it is."""

import io
import re
import sys
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_rl.models.checkpoint.remote import RemoteFolder
from slurm_rl.plugins.image.rootfs import unpack_root
from slurm_rl.plugins.prepare.archive import extract_archive
from slurm_rl.run_dir import meter
from slurm_rl.run_dir.meter import Work, measure

DEADLINE_S = 20.0


@pytest.fixture
def many_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter, "EVERY_S", 1e-6)


def polled(values: list[float]) -> tuple[Callable[[], float], threading.Event]:
    """A poll that hands out these values, and an event that is set when one more was asked for: all are shown."""
    left, over = list(values), threading.Event()

    def poll() -> float:
        if len(left) == 1:
            over.set()
        return left.pop(0) if len(left) > 1 else left[0]

    return poll, over


def test_a_line_says_what_how_much_how_fast_and_how_long_still() -> None:
    work = Work("model.safetensors", 15.2e9, done=3.1e9)
    assert work.describe(10.0) == "model.safetensors: 3.1 of 15.2 GB, 20%, 310.0 MB/s, 39 s left"
    assert Work("answers", 400, "answers", done=100).describe(50.0) == (
        "answers: 100 of 400 answers, 25%, 2 answers/s, 2 min 30 s left"
    )
    assert Work("x", 5.0).describe(0.0) == "x: 0 of 5 B, 0%, 0 s so far"
    assert Work("x", 10.0, done=12.0).describe(4000.0) == "x: 12 B, 100%, 0 B/s, 0 s left"
    assert work.describe_end(72.0) == "model.safetensors: 3.1 of 15.2 GB done in 1 min 12 s"


@pytest.mark.usefixtures("many_lines")
def test_a_log_gets_plain_lines_while_the_work_goes_on_and_one_at_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    poll, over = polled([1e6, 2e6, 2e6])
    with measure("weights", 4e6, poll=poll):
        assert over.wait(DEADLINE_S)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("weights: 1.0 of 4.0 MB, 25%, ") and lines[1].startswith("weights: 2.0 of 4.0 MB, 50%, ")
    assert re.fullmatch(r"weights: 2.0 of 4.0 MB done in \d+ s", lines[-1])
    assert not set("".join(lines)) & set("\x1b\r")


def test_quick_work_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with measure("quick", 3) as advance:
        advance(3)
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("many_lines")
def test_what_threads_do_together_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    with measure("files", 400, unit="files") as advance:
        threads = [threading.Thread(target=lambda: [advance(1) for _ in range(100)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert "files: 400 of 400 files done in 0 s" in capsys.readouterr().err


@pytest.mark.usefixtures("many_lines")
def test_work_that_fails_raises_and_is_not_done(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError), measure("broken", 3):
        raise ZeroDivisionError
    assert " done in " not in capsys.readouterr().err
    assert not [thread for thread in threading.enumerate() if thread.name == "meter"]


@pytest.mark.usefixtures("many_lines")
def test_one_of_many_ranks_tells(capsys: pytest.CaptureFixture[str]) -> None:
    with measure("weights", 3, is_shown=False) as advance:
        advance(3)
    assert capsys.readouterr().err == ""


def test_a_reader_that_left_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    meter._write("x")


def unpack_archive(folder: Path) -> None:
    (folder / "out").mkdir()
    extract_archive(make_tar(folder), folder / "out")


def unpack_image(folder: Path) -> None:
    (folder / "root").mkdir()
    with make_tar(folder).open("rb") as stream:
        unpack_root(stream, folder / "root")


def copy_to_url(folder: Path) -> None:
    make_tar(folder)
    RemoteFolder(f"file://{folder}/bucket", key=lambda: "key", retry_s=()).upload("step-3", folder)


def make_tar(folder: Path) -> Path:
    (folder / "file").write_bytes(b"x" * 5000)
    with tarfile.open(folder / "some.tar", "w") as tar:
        tar.add(folder / "file", "file")
    return folder / "some.tar"


@pytest.mark.parametrize(
    ("work", "said"),
    [
        (unpack_archive, r"unpacking some.tar: 5.0 kB done in"),
        (unpack_image, r"image   unpacking: 5.0 kB done in"),
        (copy_to_url, r"copying step-3 to file://.*/bucket: 15.2 kB done in"),
    ],
)
@pytest.mark.usefixtures("many_lines")
def test_what_takes_long_with_real_data_is_measured(
    work: Callable[[Path], None], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work(tmp_path)
    assert re.search(said, capsys.readouterr().err)
