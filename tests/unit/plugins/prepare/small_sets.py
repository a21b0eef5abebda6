"""Small data sets with the columns of the real ones."""

import io
import json
import tarfile
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

THEIRS = "/apdcephfs_gy2/share_302735770/berlinni/zgr/data/mathv60k/"
VERMULTI = "datasets/VLM-Reasoner/VerMulti"
GSM8K = "datasets/openai/gsm8k"
MATH = "datasets/EleutherAI/hendrycks_math"


def picture(shade: int, kind: str = "JPEG", size: tuple[int, int] = (64, 48)) -> bytes:
    out = io.BytesIO()
    Image.effect_noise(size, 60 + shade % 40).save(out, kind)
    return out.getvalue()


def pack(members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def mathv60k_row(number: int, image: str, *, image_first: bool) -> dict[str, Any]:
    parts = [{"type": "text", "text": f"How long is side {number}?"}, {"type": "image", "image": image}]
    messages = [
        {"role": "system", "content": "Solve the question. <think> .. </think><answer> .. </answer>"},
        {"role": "user", "content": parts[::-1] if image_first else parts},
    ]
    return {"question": f"side {number}", "answer": f"$\\boxed{{{number}}}$", "message": json.dumps(messages)}


def mathv60k(num_rows: int = 8) -> dict[str, bytes]:
    """Return data in which two rows share each image, and text and images have different orders."""
    members, rows = {}, []
    for number in range(num_rows):
        name = f"Geometry3K/images/{number // 2}.jpg"
        members[name] = picture(number // 2)
        rows.append(mathv60k_row(number, THEIRS + name, image_first=number % 2 == 0))
    return {"mathv60k_message.jsonl": jsonl(rows), "mathv60k_img.tar.gz": pack(members), "README.md": b"# VerMulti"}


def jsonl(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def parquet(rows: list[dict[str, Any]]) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), out)
    return out.getvalue()


def gsm8k(**splits: list[dict[str, Any]]) -> dict[str, bytes]:
    good = [{"question": f"What is {n}+{n}?", "answer": f"<<{n}+{n}>>\n#### {1000 + n:,}"} for n in range(3)]
    return {f"main/{s}-00000-of-00001.parquet": parquet(splits.get(s, good)) for s in ("train", "test")}


def math(*more: str) -> dict[str, bytes]:
    """Write one row per file; add rows with these solutions to the first file."""
    files: dict[str, bytes] = {}
    for subject in ("algebra", "geometry"):
        for split in ("train", "test"):
            row = {
                "problem": f"A {subject} problem.",
                "level": "Level 1",
                "type": subject,
                "solution": r"First \boxed{1}, so $\boxed{\frac{1}{2}}$.",
            }
            files[f"{subject}/{split}-00000-of-00001.parquet"] = parquet(
                [row] if files else [row, *({**row, "solution": s} for s in more)]
            )
    return files
