import json
import re
import subprocess
import tarfile
from pathlib import Path

import pytest

from slurm_rl.config.preset_folders import shipped_dir
from slurm_rl.errors import ConfigError
from slurm_rl.plugins.image.definition import render_definition
from slurm_rl.plugins.image.make import Target, build_image, import_image
from slurm_rl.plugins.image.recipe import Recipe, hash_recipe, write_context
from tests.unit.plugins.image.programs import Programs
from tests.unit.plugins.image.test_image_files import sif, sqsh

# A fake engine with a store of built and pulled images and their labels.
ENGINE = """
import json, tarfile
store = Path(sys.argv[0]).with_name("store.json")
held = json.loads(store.read_text()) if store.exists() else {}
def put(ref, label): held[ref] = label; store.write_text(json.dumps(held))
words = argv[1:] if argv[0] == "image" else argv
if words[0] in ("build", "import"):
    labels = [w.rpartition("=")[2] for w in argv if "slurm_rl.recipe=" in w]
    put(str(out("tag")) if words[0] == "build" else argv[-1], labels[0])
elif words[0] == "pull": put(argv[-1], "")
elif words[0] == "inspect":
    ref = argv[-1]
    if ref not in held: sys.exit(1)
    config = {"Env": ["A=b"], "Labels": {"slurm_rl.recipe": held[ref]}}
    print(json.dumps([{"Config": config}]))
elif words[0] == "create": print("container-1")
elif words[0] == "export": tarfile.open(fileobj=sys.stdout.buffer, mode="w|").addfile(tarfile.TarInfo("bin"))
elif words[0] == "save": out("output").write_text("archive")
"""


def writes(content: bytes, word: str) -> str:
    return f"Path({word}).write_bytes({content!r})"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    found = Programs(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(found.folder))
    return found


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    path = tmp_path / "shared"
    path.mkdir()
    return path


@pytest.mark.parametrize("name", ["podman", "docker"])
def test_pyxis_build_uses_mksquashfs_and_is_idempotent(
    programs: Programs, shared: Path, tmp_path: Path, name: str
) -> None:
    programs.add(name, ENGINE)
    # enroot would refuse an image without CMD and leave a container.
    programs.add("enroot", "sys.exit('no')")
    checks = "assert Path(argv[0], 'etc/environment').read_text() == 'A=b\\n'"
    programs.add("mksquashfs", f"{checks}\n{writes(sqsh(500), 'argv[1]')}")
    write_context(Recipe("cpu"), tmp_path / "context")
    target, digest = Target("pyxis", str(shared / "rl.sqsh")), hash_recipe(Recipe("cpu"), tmp_path / "context")
    tag = f"localhost/slurm_rl-cpu:{digest[:12]}"
    assert build_image(target, Recipe("cpu"), engine_args=("--network=host",))
    calls = programs.calls()
    build = next(call for call in calls if call.startswith(f"{name} build "))
    assert f"--tag={tag} --label=slurm_rl.recipe={digest} --network=host /" in build
    assert f"{name} create {tag} /bin/true" in calls and f"{name} export container-1" in calls
    assert f"{name} rm --force container-1" in calls
    assert [call for call in calls if call.startswith("mksquashfs") and "-all-root" in call and "-comp zstd" in call]
    assert sorted(path.name for path in shared.iterdir()) == ["rl.sqsh", "rl.sqsh.json"]
    manifest = json.loads((shared / "rl.sqsh.json").read_text())
    assert manifest["source_hash"] == digest and manifest["size"] == 500 and manifest["from"] == "cpu"
    assert not build_image(target, Recipe("cpu"))
    assert programs.calls() == calls
    # A changed recipe or a damaged image is rebuilt.
    assert build_image(target, Recipe("cpu", {"BASE": "x"}))
    (shared / "rl.sqsh").write_bytes(sqsh(500)[:400])
    assert build_image(target, Recipe("cpu", {"BASE": "x"}))


@pytest.mark.parametrize("name", ["podman", "docker"])
def test_apptainer_builds_from_archive(programs: Programs, shared: Path, name: str) -> None:
    programs.add(name, ENGINE)
    programs.add("apptainer", writes(sif(200, 300), "argv[1]"))
    assert build_image(Target("apptainer", str(shared / "rl.sif")), Recipe("cpu"))
    assert [call for call in programs.calls() if call.startswith(f"{name} save --output=")]
    built = next(call for call in programs.calls() if call.startswith("apptainer"))
    assert built.startswith(f"apptainer build {shared}/.rl.sif.") and " docker-archive:/" in built


def test_podman_image_stays_in_store(programs: Programs) -> None:
    programs.add("podman", ENGINE)
    assert [build_image(Target("podman", "localhost/rl:1"), Recipe("cpu")) for _ in range(2)] == [True, False]
    assert len([call for call in programs.calls() if call.startswith("podman build")]) == 1


def test_import_from_registry_or_tar(programs: Programs, shared: Path, tmp_path: Path) -> None:
    target, ref = Target("pyxis", str(shared / "rl.sqsh")), "docker://nvcr.io/nvidia/pytorch:1"
    programs.add("podman", ENGINE)
    programs.add("mksquashfs", writes(sqsh(500), "argv[1]"))
    with tarfile.open(tmp_path / "root.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo("bin"))
    assert import_image(target, str(tmp_path / "root.tar")) and not import_image(target, str(tmp_path / "root.tar"))
    assert not [call for call in programs.calls() if call.startswith("podman")], "a tar needs no engine"
    assert import_image(target, ref) and not import_image(target, ref)
    assert [call for call in programs.calls() if "pull" in call] == ["podman pull nvcr.io/nvidia/pytorch:1"]
    programs.add("enroot", writes(sqsh(500), "out('output')"))
    assert import_image(target, ref, force=True)
    assert programs.calls()[-1].endswith(" docker://nvcr.io#nvidia/pytorch:1")


def test_missing_tools_are_listed(programs: Programs, shared: Path, tmp_path: Path) -> None:
    target = Target("pyxis", str(shared / "rl.sqsh"))
    with pytest.raises(ConfigError, match=r"podman is not on PATH; docker is not on PATH.* image import"):
        build_image(target, Recipe("cpu"))
    programs.add("docker", "print('Cannot connect to the daemon', file=sys.stderr); sys.exit(1)")
    with pytest.raises(ConfigError, match=r"docker does not answer \(Cannot connect to the daemon\)"):
        build_image(target, Recipe("cpu"))
    programs.add("podman", ENGINE)
    for runtime, suffix, wanted in (("pyxis", "sqsh", "squashfs-tools"), ("apptainer", "sif", "apptainer")):
        with pytest.raises(ConfigError, match=wanted):
            build_image(Target(runtime, str(shared / f"rl.{suffix}")), Recipe("cpu"))
    assert not [call for call in programs.calls() if " build " in call]
    assert list(shared.iterdir()) == []


@pytest.mark.parametrize(
    ("maker", "message"),
    [
        ("Path(argv[1]).write_bytes(b'half'); print('No space left on device'); sys.exit(1)", "room on the disk"),
        ("Path(argv[1]).write_bytes(b'half'); print('some other words'); sys.exit(3)", "status 3\nsome other words"),
        (writes(sqsh(500)[:300], "argv[1]"), "must be complete"),
    ],
)
def test_failed_build_keeps_old_image_only(programs: Programs, shared: Path, maker: str, message: str) -> None:
    programs.add("podman", ENGINE)
    programs.add("mksquashfs", maker)
    (shared / "rl.sqsh").write_bytes(b"the old one")
    with pytest.raises(ConfigError, match=message):
        build_image(Target("pyxis", str(shared / "rl.sqsh")), Recipe("cpu"))
    assert [path.read_bytes() for path in shared.iterdir()] == [b"the old one"]


def test_failed_build_or_export_quotes_engine(programs: Programs, shared: Path) -> None:
    target = Target("pyxis", str(shared / "rl.sqsh"))
    programs.add("mksquashfs", writes(sqsh(500), "argv[1]"))
    cut = "if argv[0] == 'build': print('E: no mirror'); sys.exit(100)\nwords = "
    programs.add("podman", ENGINE.replace("words = ", cut, 1))
    with pytest.raises(ConfigError, match="podman build must succeed; got exit status 100\nE: no mirror"):
        build_image(target, Recipe("cpu"))
    cut = "if argv[0] == 'export': sys.stdout.buffer.write(b'x' * 700); sys.exit('store gone')\nwords = "
    programs.add("podman", ENGINE.replace("words = ", cut, 1))
    with pytest.raises(ConfigError, match="podman export must succeed; got exit status 1\nstore gone"):
        build_image(target, Recipe("cpu"))
    assert list(shared.iterdir()) == []


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (Target("none", ""), "needs a container runtime"),
        (Target("pyxis", "nvcr.io#nvidia/pytorch"), r"path of the \.sqsh"),
        (Target("apptainer", "/tmp/x.sqsh"), r"path of the \.sif"),
        (Target("pyxis", "/no/such/folder/x.sqsh"), "in a writable folder"),
    ],
)
def test_unwritable_target_is_refused_first(programs: Programs, target: Target, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_image(target, Recipe("cpu"))
    with pytest.raises(ConfigError, match=message):
        import_image(target, "x")
    assert programs.calls() == []


def test_context_holds_only_recipe_and_lists(tmp_path: Path) -> None:
    write_context(Recipe("cuda"), tmp_path / "c")
    files = sorted(str(path.relative_to(tmp_path / "c")) for path in (tmp_path / "c").rglob("*") if path.is_file())
    of_recipe = ["containers/cuda/Containerfile", "containers/cuda/constraints.txt", "containers/requirements.py"]
    assert files == ["constraints.txt", *of_recipe, "pyproject.toml"]
    before = hash_recipe(Recipe("cuda"), tmp_path / "c")
    assert before != hash_recipe(Recipe("cuda", {"A": "b"}), tmp_path / "c")
    with (tmp_path / "c/constraints.txt").open("a") as file:
        file.write("x==1\n")
    assert before != hash_recipe(Recipe("cuda"), tmp_path / "c")


def test_apptainer_only_site_builds_and_imports(programs: Programs, shared: Path) -> None:
    """The program stands in for apptainer: no test has built with a real one."""
    programs.add("apptainer", f"{writes(sif(200, 300), 'argv[-2]')}\nprint(Path(argv[-1]).exists() or argv[-1])")
    target = Target("apptainer", str(shared / "rl.sif"))
    assert build_image(target, Recipe("cpu"), engine_args=("--fakeroot",))
    assert not build_image(target, Recipe("cpu"))
    assert import_image(target, "docker://nvcr.io/nvidia/pytorch:25.01-py3", force=True)
    built, imported = programs.calls()
    assert built.startswith(f"apptainer build --fakeroot {shared}/.rl.sif.") and built.endswith("/recipe.def")
    assert imported.endswith(" docker://nvcr.io/nvidia/pytorch:25.01-py3")
    with pytest.raises(ConfigError, match="apptainer for container"):
        build_image(Target("pyxis", str(shared / "rl.sqsh")), Recipe("cpu"), "apptainer")


@pytest.mark.parametrize("name", ["cpu", "cuda", "rocm", "verl", "openrlhf", "maxtext"])
def test_recipe_becomes_apptainer_definition(name: str) -> None:
    recipe = shipped_dir("containers", "requirements.py") / name / "Containerfile"
    text = render_definition(recipe.read_text(), {"BASE": "site/base:1"}, "/context", "abc")
    assert text.startswith("Bootstrap: docker\nFrom: site/base:1\n") and text.endswith("slurm_rl.recipe abc\n")
    assert "COPY" not in text and "useradd" not in text
    for post in re.findall(r"^%post\n(.*?)(?=^%|^Bootstrap|\Z)", text, re.DOTALL | re.MULTILINE):
        subprocess.run(["/bin/sh", "-n"], input=post, text=True, check=True)
    if name == "cuda":
        assert "%files from build\n    /opt/venv /opt/venv\n" in text and "Stage: build" in text
        assert "    /context/containers/cuda/constraints.txt /build/constraints.txt\n" in text
        assert "export FLASH_ATTN_CUDA_ARCHS='80;90'" in text
    with pytest.raises(ConfigError, match="got HEALTHCHECK none"):
        render_definition("FROM a\nHEALTHCHECK none\n", {}, "/context", "abc")
