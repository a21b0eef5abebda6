"""Write a data set for verl: parquet with the columns of verl's own preprocessing, in bounded memory.

https://github.com/volcengine/verl: examples/data_preprocess/gsm8k.py writes these columns, verl/utils/dataset/
rl_dataset.py reads them, and verl/utils/reward_score chooses the scorer by `data_source`. The scorer requires its own
form of answers, so prompts differ from those of our rows.
"""

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

from slurm_rl.config.user_files.load import require_library
from slurm_rl.plugins.prepare.dataset import Question, Row, VerlForm, Workspace, read_parquet
from slurm_rl.plugins.prepare.manifest import Output, sha256_of
from slurm_rl.run_dir.io_errors import annotate_path, fsync_path

FOLDER = "verl"
"""Folder below the root; files of the same names for our own trainer are in the root."""
_ROWS_A_GROUP = 1000


def build_for_verl(name: str, form: VerlForm, work: Workspace) -> list[Output]:
    """Write train.parquet and test.parquet.

    Raises:
        DataError: a bad row that may not be omitted, or a file that is not parquet.
    """
    return [
        write_parquet(work.folder, f"{split}.parquet", _rows_of(name, form, work, split)) for split in ("train", "test")
    ]


def _rows_of(name: str, form: VerlForm, work: Workspace, split: str) -> Iterator[Row]:
    number = 0
    for file, path in sorted(work.sources.items()):
        for place, row in read_parquet(path, form.columns) if f"/{split}-" in file else ():
            made = form.convert(row)
            if isinstance(made, str):
                work.bad_rows.add(f"{file} row {place}", made)
                continue
            yield render_row(form, made, split, number)
            number += 1
    # Raises before the file is renamed.
    work.bad_rows.check(f"{name} {split}", number)


def render_row(form: VerlForm, question: Question, split: str, number: int) -> Row:
    """Return a row with verl's columns; `number` is its index in the split."""
    prompt = [{"role": "user", "content": f"{question.text} {form.instruction}"}]
    return {
        "data_source": form.data_source,
        "prompt": prompt,
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": question.answer},
        "extra_info": {"split": split, "index": number, "question": question.text, "answer": question.solution},
    }


def write_parquet(folder: Path, name: str, rows: Iterable[Row]) -> Output:
    """Write rows in groups to a temporary file and rename it; remove it if `rows` raises."""
    require_library("pyarrow", "parquet files need pyarrow")
    import pyarrow
    import pyarrow.parquet

    # Explicit: types inferred from the first group may not fit the others.
    text = pyarrow.string()
    message = pyarrow.struct({"role": text, "content": text})
    extra = pyarrow.struct({"split": text, "index": pyarrow.int64(), "question": text, "answer": text})
    schema = pyarrow.schema(
        {
            "data_source": text,
            "prompt": pyarrow.list_(message),
            "ability": text,
            "reward_model": pyarrow.struct({"style": text, "ground_truth": text}),
            "extra_info": extra,
        }
    )
    path, beside, count = folder / name, folder / f".{name}.tmp", 0
    with annotate_path(path):
        try:
            with beside.open("wb") as file, pyarrow.parquet.ParquetWriter(file, schema) as writer:
                left = iter(rows)
                while group := list(itertools.islice(left, _ROWS_A_GROUP)):
                    writer.write_batch(pyarrow.RecordBatch.from_pylist(group, schema=schema))
                    count += len(group)
            fsync_path(beside)
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
    return Output(file=name, size=path.stat().st_size, sha256=sha256_of(path), rows=count)
