"""The image: hadolint accepts its Dockerfile, what it copies exists, and its health check works.

It is not built here: that needs a container engine.
"""

from __future__ import annotations

import re
import shutil
import ssl
import subprocess
import sys
import threading
import tomllib
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
HEALTH = ROOT / "deploy" / "healthcheck.py"


@pytest.fixture(scope="module")
def text() -> str:
    return DOCKERFILE.read_text()


def test_hadolint_accepts_it() -> None:
    program = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip("hadolint is not installed")
    done = subprocess.run([program, DOCKERFILE], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_what_it_copies_exists_and_is_not_ignored(text: str) -> None:
    ignored = set((ROOT / ".dockerignore").read_text().split())
    copied = re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE)
    sources = [source for line in copied for source in line.split()[:-1]]
    assert sources
    for source in sources:
        assert (ROOT / source).exists()
        assert not {source, source.split("/")[0]} & ignored


def test_it_has_every_extra_but_the_servers_of_the_demo(text: str) -> None:
    """GIVEN a settings file with any sink THEN the image has its client."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = re.search(r"'\.\[(.+)\]'", text)
    assert extras is not None
    expected = project["project"]["optional-dependencies"].keys() - {"embedded"}
    assert set(extras[1].split(",")) == expected


def test_the_extra_of_the_demo_has_its_webhooks() -> None:
    """GIVEN `pip install tailrace[embedded]` THEN the pipeline `webhooks` of the demo can start."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert set(extras["http"]) <= set(extras["embedded"])


def test_its_versions_are_those_of_the_lock(text: str, tmp_path: Path) -> None:
    """GIVEN the lock WHEN the image's sed has read it THEN each line names one version."""
    script = re.search(r"sed -E '(.+)' requirements\.lock", text)
    assert script is not None
    done = subprocess.run(
        ["sed", "-E", script[1], ROOT / "requirements.lock"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert len(lines) > 50
    odd = [line for line in lines if not re.fullmatch(r"[\w.\-\[\]]+==[\w.+!]+( ;.*)?", line)]
    assert odd == []


def test_it_runs_as_a_user_without_rights(text: str) -> None:
    """GIVEN the last stage THEN its user is a number (Kubernetes: runAsNonRoot), and comes before
    what the user creates."""
    last = text[text.rindex("\nFROM ") :]
    assert re.findall(r"^USER (.+)$", last, re.MULTILINE) == ["10001:10001"]
    assert "--uid 10001" in last
    assert last.index("USER ") < last.index("tailrace.pipeline.archive")


class _Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health" else 503)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def server(certificates: Path | None = None) -> Iterator[int]:
    """A server that is healthy and not ready; its port."""
    with HTTPServer(("127.0.0.1", 0), _Answer) as listening:
        if certificates is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificates / "named.crt", certificates / "named.key")
            listening.socket = context.wrap_socket(listening.socket, server_side=True)
        thread = threading.Thread(target=listening.serve_forever, args=(0.01,))
        thread.start()
        yield listening.server_port
        listening.shutdown()
        thread.join()


def check(url: str) -> subprocess.CompletedProcess[str]:
    """The health check, with a proxy in its environment that does not exist."""
    proxy = "http://127.0.0.1:9"
    return subprocess.run(
        [sys.executable, HEALTH], check=False, capture_output=True, text=True,
        env={"TAILRACE_HEALTH_URL": url, "http_proxy": proxy, "https_proxy": proxy},
    )  # fmt: skip


def test_the_health_check_asks_the_endpoints() -> None:
    with server() as port:
        assert check(f"http://localhost:{port}/health").returncode == 0
        refused = check(f"http://localhost:{port}/ready")
    assert refused.returncode == 1
    assert "503" in refused.stderr
    assert check(f"http://localhost:{port}/health").returncode == 1


def test_the_health_check_takes_certificates_of_other_names(certificates: Path) -> None:
    """GIVEN TLS with a certificate of an authority that the container does not know, for another
    name THEN the health check asks all the same: it is the container's own server."""
    with server(certificates) as port:
        assert check(f"https://127.0.0.1:{port}/health").returncode == 0
