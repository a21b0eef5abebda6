r"""MathV60K: questions about pictures (geometry, charts, science), in the message format of LMM-R1.

    {"question": "...", "answer": "$\boxed{60}$",
     "message": "[{\"role\": \"user\", \"content\": [{\"type\": \"image\", \"image\": \"/their/1.jpg\"}]}]"}

`message` (a list in a string) becomes `prompt` (the list), with the paths of the images on this machine; `answer`
stays. https://arxiv.org/abs/2503.07536
"""

import json
import os
import shutil
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any

from slurm_rl.config.user_files.load import require_library
from slurm_rl.data.images import open_bounded
from slurm_rl.data.lines import parse_object, read_lines
from slurm_rl.errors import DataError
from slurm_rl.plugins.prepare.archive import extract_archive
from slurm_rl.plugins.prepare.dataset import DatasetRecipe, Workspace, drop_unscorable, write_rows
from slurm_rl.plugins.prepare.manifest import Output
from slurm_rl.run_dir.meter import measure

MAX_ASPECT = 200
"""Longer side over shorter: the image processor of the Qwen-VL families refuses more."""


def find_bad_images(paths: Sequence[Path], say: Callable[[str], None]) -> dict[Path, str]:
    """Return the defect of each unusable image.

    Raises:
        ConfigError: Pillow is not installed.
    """
    require_library("PIL", "checking images needs Pillow")
    bad: dict[Path, str] = {}
    # Threads: reading waits for the disk, and decoding releases the GIL.
    with (
        ThreadPoolExecutor(max_workers=min(16, 2 * len(os.sched_getaffinity(0)))) as pool,
        measure("checking images", len(paths), unit="images") as advance,
    ):
        for path, why in zip(paths, pool.map(describe_damage, paths), strict=True):
            advance(1)
            if why:
                bad[path] = why
    say(f"checked {len(paths)} images")
    return bad


def describe_damage(path: Path) -> str:
    """Return the defect of an image; "" for a usable one."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about metadata
            with path.open("rb") as file, open_bounded(file) as image:
                width, height = image.size
                if max(width, height) > MAX_ASPECT * min(width, height):
                    return f"{width} x {height} pixels, longer than {MAX_ASPECT} times its width"
                # A JPEG is read to its end but decoded at an eighth of its size.
                image.draft("RGB", (max(1, width // 8), max(1, height // 8)))
                image.load()
    except FileNotFoundError:
        return "no such file"
    except Exception as error:  # decoders raise arbitrary errors on damaged files
        return f"{type(error).__name__}: {error}"
    return ""


ROWS = "mathv60k_message.jsonl"
IMAGES = "mathv60k_img.tar.gz"
THEIR_FOLDER = PurePosixPath("/apdcephfs_gy2/share_302735770/berlinni/zgr/data/mathv60k")
"""Folder of the images in the rows; the archive has the paths below it."""


def build(work: Workspace) -> list[Output]:
    images = work.folder / "images"
    beside = work.folder / "images.part"
    for left in (beside, images):
        shutil.rmtree(left, ignore_errors=True)
    beside.mkdir()
    work.say(f"unpacking {IMAGES}")
    num_files, num_bytes = extract_archive(work.sources[IMAGES], beside)
    work.say(f"unpacked {num_files} files, {num_bytes / 1e9:.2f} GB")
    reader = RowReader(beside, images)
    rows = reader.read(work.sources[ROWS], work)
    work.bad_rows.check(ROWS, len(rows))
    good = drop_unscorable(ROWS, rows, work.bad_rows, work.say)
    beside.rename(images)
    used = sorted(set(reader.found.values()))
    outputs = [Output(file=f"images/{path}", size=(images / path).stat().st_size) for path in used]
    return [*outputs, write_rows(work.folder, "train.jsonl", good)]


class RowReader:
    """Converts the rows of the message file.

    Args:
        unpacked: current folder of the images.
        final: folder of the images in the converted rows.
    """

    def __init__(self, unpacked: Path, final: Path) -> None:
        self._unpacked = unpacked
        self._final = final
        tops = [path.name for path in unpacked.iterdir() if path.is_dir()]
        # Some tools add a top-level folder to an archive.
        self._around = tops[0] if len(tops) == 1 else None
        self.found: dict[str, str] = {}
        """Path in the rows -> path below the folder."""

    def read(self, path: Path, work: Workspace) -> list[tuple[str, dict[str, Any]]]:
        """Return (where, row) of all valid rows; add the others to the bad rows."""
        rows: list[tuple[str, dict[str, Any], list[str]]] = []
        for number, line in read_lines(path):
            where = f"{ROWS}:{number}"
            try:
                rows.append((where, *self._convert(parse_object(line, where))))
            except DataError as error:
                work.bad_rows.add(where, f"{error.rule.removeprefix(where + ': ')}; got {error.seen}")
        unique = sorted(set(self.found.values()))
        bad = find_bad_images([self._unpacked / name for name in unique], work.say)
        broken = {str(path.relative_to(self._unpacked)): why for path, why in bad.items()}
        good = []
        for where, row, images in rows:
            wrong = [f"image {name}: {broken[name]}" for name in images if name in broken]
            if wrong:
                work.bad_rows.add(where, "; ".join(wrong))
            else:
                good.append((where, row))
        self.found = {path: name for path, name in self.found.items() if name not in broken}
        return good

    def _convert(self, row: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
        answer = row.get("answer")
        if not isinstance(answer, str) or not answer.strip():
            raise DataError("column 'answer' must be text", seen=repr(answer))
        messages = _parse_messages(row.get("message"))
        images: list[str] = []
        for message in messages:
            if isinstance(message["content"], list):
                message["content"] = [self._convert_part(part, images) for part in message["content"]]
        return {"prompt": messages, "answer": answer}, images

    def _convert_part(self, part: Any, images: list[str]) -> dict[str, Any]:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text" and isinstance(part.get("text"), str):
            return {"type": "text", "text": part["text"]}
        if kind == "image" and isinstance(part.get("image"), str):
            name = self._find(part["image"])
            images.append(name)
            return {"type": "image", "image": str(self._final / name)}
        raise DataError("column 'message': a part of a content is a text or an image", seen=repr(part)[:80])

    def _find(self, value: str) -> str:
        if value in self.found:
            return self.found[value]
        path = PurePosixPath(value.removeprefix("file://"))
        inside = path.relative_to(THEIR_FOLDER) if path.is_relative_to(THEIR_FOLDER) else path
        if inside.is_absolute() or ".." in inside.parts:
            raise DataError(f"column 'message': an image must be below {THEIR_FOLDER}", seen=value)
        names = [str(inside), *([f"{self._around}/{inside}"] if self._around else [])]
        name = next((name for name in names if (self._unpacked / name).is_file()), None)
        if name is None:
            raise DataError(f"column 'message': the image must be in {IMAGES}", seen=value)
        self.found[value] = name
        return name


def _parse_messages(value: Any) -> list[dict[str, Any]]:
    rule = "column 'message' must be a list of messages, each with role and content, written as JSON in a string"
    try:
        messages = json.loads(value) if isinstance(value, str) else value
    except ValueError as error:
        raise DataError(rule, seen=f"{error}: {value[:80]!r}") from None
    whole = isinstance(messages, list) and all(
        isinstance(m, dict) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str | list)
        for m in messages
    )
    if not whole or not messages:
        raise DataError(rule, seen=repr(value)[:80])
    return list(messages)


RECIPE = DatasetRecipe(
    name="mathv60k",
    about="MathV60K, 60,000 questions about pictures, 2.5 GB",
    repo="VLM-Reasoner/VerMulti",
    files=(ROWS, IMAGES),
    build=build,
)
