"""Write a data set for verl: parquet with the columns of verl's own preprocessing.

https://github.com/volcengine/verl: examples/data_preprocess/gsm8k.py writes these columns, verl/utils/dataset/
rl_dataset.py reads them, and verl/utils/reward_score chooses the scorer by `data_source`. The scorer requires its own
form of answers, so prompts differ from those of our rows.
"""

from pathlib import Path

from slurm_rl.config.user_files.load import require_library
from slurm_rl.plugins.prepare.dataset import Question, Row, VerlForm, Workspace, read_splits
from slurm_rl.plugins.prepare.manifest import Output, sha256_of
from slurm_rl.run_dir.io_errors import annotate_path, fsync_path

FOLDER = "verl"
"""Folder below the root; files of the same names for our own trainer are in the root."""


def build_for_verl(name: str, form: VerlForm, work: Workspace) -> list[Output]:
    """Write train.parquet and test.parquet.

    Raises:
        DataError: a bad row that may not be omitted, or a file that is not parquet.
    """
    outputs = []
    for split, questions in read_splits(work, name, form.columns, form.convert):
        rows = [render_row(form, question, split, number) for number, (_, question) in enumerate(questions)]
        outputs.append(write_parquet(work.folder, f"{split}.parquet", rows))
    return outputs


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


def write_parquet(folder: Path, name: str, rows: list[Row]) -> Output:
    """Write rows to a temporary file and rename it."""
    require_library("pyarrow", "parquet files need pyarrow")
    import pyarrow
    import pyarrow.parquet

    path, beside = folder / name, folder / f".{name}.tmp"
    with annotate_path(path):
        try:
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), beside)
            fsync_path(beside)
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
    return Output(file=name, size=path.stat().st_size, sha256=sha256_of(path), rows=len(rows))
