"""Images are built on bases by digest, as far as a registry tells it; and they come with a bill of materials."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from pathlib import Path
from typing import ClassVar

import pytest

from slurm_rl.__main__ import main
from slurm_rl.errors import ConfigError
from slurm_rl.plugins.image import parts
from slurm_rl.plugins.image import recipe as recipe_module
from slurm_rl.plugins.image.recipe import OTHERS, RECIPES, Recipe, pin_bases, read_bases, resolve_digest, write_context

DIGEST = "sha256:" + "5" * 64


class Registry(BaseHTTPRequestHandler):
    """The two calls of a registry's API that are asked: a token that everybody gets, and a manifest's head."""

    told: ClassVar = {"/v2/library/base/manifests/1": DIGEST, "/v2/odd/manifests/1": "sha256:5"}

    def do_GET(self) -> None:
        body = json.dumps({"token": "t"}).encode() if "scope=pull" in self.path else b"{}"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_HEAD(self) -> None:
        if self.headers["Authorization"] != "Bearer t":
            self.send_response(401)
            realm = f"http://127.0.0.1:{self.server.server_address[1]}/token"  # type: ignore[str-bytes-safe]
            self.send_header("WWW-Authenticate", f'Bearer realm="{realm}",service="s",scope="pull"')
        elif self.path in self.told and "oci.image.index" in self.headers["Accept"]:
            self.send_response(200)
            self.send_header("Docker-Content-Digest", self.told[self.path])
        else:
            self.send_response(404)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def registry() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Registry) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "bases.json"
    path.write_text("{}")
    monkeypatch.setattr(recipe_module, "bases_file", lambda: path)
    return path


def test_a_registry_tells_what_a_tag_means_now(registry: str) -> None:
    assert resolve_digest(f"{registry}/library/base:1") == DIGEST


@pytest.mark.parametrize(
    ("ref", "words"),
    [
        ("{}/library/base:2", "404"),
        ("{}/odd:1", "must tell a SHA-256 digest"),
        ("127.0.0.1:9/base:1", "must answer"),
        ("debian:12", "none named in debian:12"),
        ("localhost/debian:12", "none named"),
    ],
)
def test_what_no_registry_tells_is_said(registry: str, ref: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        resolve_digest(ref.format(registry))


def test_a_base_is_what_is_recorded_else_what_the_registry_says_else_its_tag(
    registry: str, recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded.write_text(json.dumps({f"{registry}/library/base:9": "sha256:" + "9" * 64}))
    told = {"BASE": f"{registry}/library/base:9", "FINAL": f"{registry}/library/base:1", "OTHER": f"{registry}/a:1"}
    assert pin_bases(told) == {
        "BASE": f"{registry}/library/base@sha256:" + "9" * 64,
        "FINAL": f"{registry}/library/base@{DIGEST}",
        "OTHER": f"{registry}/a:1",
    }
    assert f"{registry}/a:1 is taken by its tag" in capsys.readouterr().err


def test_the_command_raises_what_is_recorded_and_keeps_what_no_registry_tells(
    registry: str, recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded.write_text(json.dumps({f"{registry}/library/base:1": "sha256:old", f"{registry}/gone:1": None}))
    assert main(["image", "bases"]) == 0
    assert json.loads(recorded.read_text()) == {f"{registry}/library/base:1": DIGEST, f"{registry}/gone:1": None}
    assert capsys.readouterr().out == f"{DIGEST}  {registry}/library/base:1\nunknown  {registry}/gone:1\n"


def test_all_bases_of_the_recipes_are_recorded(tmp_path: Path) -> None:
    found: set[str] = set()
    for name in (*RECIPES.values(), *OTHERS):
        recipe = Recipe(name)
        write_context(recipe, tmp_path / name)
        found |= set(read_bases(recipe, tmp_path / name).values())
    assert found == set(json.loads(recipe_module.bases_file().read_text()))


def test_a_bill_of_materials_names_every_distribution_and_package(tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text(
        "Package: libc6\nStatus: install ok installed\nVersion: 2.36-9+deb12u1\n\n"
        "Package: gone\nStatus: deinstall ok config-files\nVersion: 1\n"
    )
    found = parts.collect_parts(status)
    bom = parts.build_bom(f"noise\n{parts.PREFIX}{json.dumps(found)}\n", "rl.sqsh")
    assert bom is not None and bom["bomFormat"] == "CycloneDX"
    purls = {part["purl"] for part in bom["components"]}
    assert "pkg:deb/debian/libc6@2.36-9%2Bdeb12u1" in purls and not any("gone" in purl for purl in purls)
    assert f"pkg:pypi/pytest@{metadata.version('pytest')}" in purls
    assert parts.build_bom("python3: not found", "rl.sqsh") is None
