import io
import json
import tarfile
from pathlib import Path

import pytest

from slurm_rl.config.data import DataConfig
from slurm_rl.config.load import load_config
from slurm_rl.data.prompts import load_rows
from slurm_rl.errors import DataError
from slurm_rl.launch.runs.checks import check_inputs
from tests.unit.plugins.prepare.conftest import Prepare
from tests.unit.plugins.prepare.hub_server import COMMIT, Hub
from tests.unit.plugins.prepare.small_sets import THEIRS, VERMULTI, jsonl, mathv60k, mathv60k_row, pack, picture

TAR = "mathv60k_img.tar.gz"
ROWS = "mathv60k_message.jsonl"


def read_rows(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_rows_name_local_images_and_second_call_is_offline(hub: Hub, prepare: Prepare, tmp_path: Path) -> None:
    hub.repos[VERMULTI] = {"other.txt": b"x"}
    done = prepare("mathv60k", "--root", "there")
    assert done.returncode == 2 and f"must hold {ROWS}; got other.txt" in done.stderr
    hub.repos[VERMULTI] = mathv60k(8)
    with tarfile.open(fileobj=io.BytesIO(hub.repos[VERMULTI][TAR])) as tar:
        pictures = [member.read() for info in tar if (member := tar.extractfile(info))]
    done = prepare("mathv60k", "--root", "there")
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "there" / "mathv60k"
    assert f"{folder}/train.jsonl  8 rows" in done.stdout
    rows = read_rows(folder / "train.jsonl")
    for number, row in enumerate(rows):
        assert row["answer"] == f"$\\boxed{{{number}}}$"
        system, user = row["prompt"]  # type: ignore[misc]
        assert system["role"] == "system"
        kinds = [part["type"] for part in user["content"]]
        assert kinds == (["image", "text"] if number % 2 == 0 else ["text", "image"])
        image = next(part["image"] for part in user["content"] if part["type"] == "image")
        assert image == f"{folder}/images/Geometry3K/images/{number // 2}.jpg"
        assert Path(image).read_bytes() == pictures[number // 2]
    assert [row.prompt for row in load_rows(folder / "train.jsonl", DataConfig())] == [row["prompt"] for row in rows]
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["commit"] == COMMIT
    assert {source["file"] for source in manifest["sources"]} == {ROWS, TAR}
    assert [output["rows"] for output in manifest["outputs"] if output["rows"]] == [8]
    assert sorted(path.name for path in folder.iterdir()) == [".prepare.lock", "images", "manifest.json", "train.jsonl"]

    asked = len(hub.log)
    for offline in (False, True):
        again = prepare("mathv60k", "--root", "there", offline=offline)
        assert (again.returncode, len(hub.log), again.stdout) == (0, asked, done.stdout)
        assert "already there" in again.stderr


def test_experiment_uses_prepared_data(hub: Hub, prepare: Prepare, tmp_path: Path) -> None:
    hub.repos[VERMULTI] = mathv60k(8)
    assert prepare("mathv60k", "--root", "there").returncode == 0
    words = ["+cluster=nvidia_a100", "+exp=grpo_mathv60k", f"data.root={tmp_path}/there", "data.num_eval=2"]
    config = load_config(words)
    check_inputs(config, print)
    (tmp_path / "there/mathv60k/images/Geometry3K/images/2.jpg").unlink()
    with pytest.raises(DataError, match=r"images/2\.jpg"):
        check_inputs(config, print)


def test_lost_image_is_named_and_restored(hub: Hub, prepare: Prepare, tmp_path: Path) -> None:
    hub.repos[VERMULTI] = mathv60k(4)
    assert prepare("mathv60k").returncode == 0
    image = tmp_path / "data/mathv60k/images/Geometry3K/images/1.jpg"
    image.unlink()
    again = prepare("mathv60k")
    assert again.returncode == 0
    assert "made again, since images/Geometry3K/images/1.jpg has no file" in again.stderr
    assert image.is_file()


BAD_ROWS: list[tuple[bytes, list[str]]] = [
    (b"{broken\n", ["must be JSON"]),
    (jsonl([{"answer": "1", "message": "not a list"}]), ["'message'", "not a list"]),
    (jsonl([{"answer": "1", "message": "[]"}]), ["'message'", "got '[]'"]),
    (jsonl([{"answer": "", "message": '[{"role": "user", "content": "?"}]'}]), ["'answer' must be text; got ''"]),
    (jsonl([{"message": '[{"role": "user", "content": "?"}]'}]), ["'answer' must be text; got None"]),
    (jsonl([{"answer": "1", "message": '[{"role": "user", "content": [{"type": "video"}]}]'}]), ["video"]),
    (jsonl([mathv60k_row(3, THEIRS + "Geometry3K/images/99.jpg", image_first=True)]), ["images/99.jpg", TAR]),
    (jsonl([mathv60k_row(3, "/etc/passwd", image_first=True)]), ["got /etc/passwd"]),
    (jsonl([mathv60k_row(3, THEIRS + "../../../etc/passwd", image_first=True)]), ["../../../etc/passwd"]),
]


def test_bad_rows_are_numbered_and_leave_no_output(hub: Hub, prepare: Prepare, tmp_path: Path) -> None:
    files = mathv60k(4)
    hub.repos[VERMULTI] = {**files, ROWS: files[ROWS] + b"".join(row for row, _ in BAD_ROWS) + files[ROWS]}
    done = prepare("mathv60k")
    assert done.returncode == 2
    assert "9 of 17 are not" in done.stderr and "--leave-out-bad-rows" in done.stderr
    for number, (_, words) in enumerate(BAD_ROWS, 5):
        said = done.stderr.partition(f"{ROWS}:{number}: ")[2].partition(f"; {ROWS}:")[0]
        assert [word for word in words if word not in said] == [], said
    assert not list((tmp_path / "data/mathv60k").glob("*.json*"))


@pytest.mark.parametrize("damage", ["cut", "no picture"])
def test_damaged_image_is_named_with_rows_and_may_be_skipped(
    damage: str, hub: Hub, prepare: Prepare, tmp_path: Path
) -> None:
    good, bad = picture(1, size=(256, 256)), picture(2, size=(256, 256))
    bad = bad[: len(bad) // 2] if damage == "cut" else b"<html>not found</html>"
    names = ["a/good.jpg", "a/bad.jpg", "a/good.jpg"]
    rows = [mathv60k_row(n, f"file://{THEIRS}{name}", image_first=True) for n, name in enumerate(names)]
    hub.repos[VERMULTI] = {ROWS: jsonl(rows), TAR: pack({"./a/good.jpg": good, "./a/bad.jpg": bad})}
    done = prepare("mathv60k")
    assert done.returncode == 2
    assert f"{ROWS}:2: image a/bad.jpg" in done.stderr and "1 of 3" in done.stderr
    done = prepare("mathv60k", "--leave-out-bad-rows")
    assert done.returncode == 0, done.stderr
    kept = [row["answer"] for row in read_rows(tmp_path / "data/mathv60k/train.jsonl")]
    assert kept == ["$\\boxed{0}$", "$\\boxed{2}$"]
    (left_out,) = json.loads((tmp_path / "data/mathv60k/manifest.json").read_text())["left_out"]
    assert f"{ROWS}:2: image a/bad.jpg" in left_out
    # Files of the first call are not downloaded again.
    assert hub.downloads == {ROWS: 1, TAR: 1}


def test_archive_with_outer_folder_is_accepted(hub: Hub, prepare: Prepare, tmp_path: Path) -> None:
    rows = jsonl([mathv60k_row(0, THEIRS + "a/0.png", image_first=False)])
    hub.repos[VERMULTI] = {ROWS: rows, TAR: pack({"mathv60k/a/0.png": picture(0, "PNG"), "mathv60k/b/0.png": b""})}
    assert prepare("mathv60k").returncode == 0
    (row,) = read_rows(tmp_path / "data/mathv60k/train.jsonl")
    assert str(tmp_path / "data/mathv60k/images/mathv60k/a/0.png") in json.dumps(row)
