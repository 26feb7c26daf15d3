"""`tailrace run` with pipelines to NATS and to an HTTP receiver, and visitors of its console."""

from __future__ import annotations

import re
import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import yaml

from tailrace.testing import HttpReceiver, HttpResponse
from tailrace.testing.process import free_port
from tests import http, jetstream
from tests.command import Service
from tests.unit.console.house import Html
from tests.waiting import LONG_S

if TYPE_CHECKING:
    from tailrace.testing import EmbeddedNats
    from tailrace.testing.receiver import HttpRequest
    from tests.fix_postgres import Database

ROWS = 20


class Running(Service):
    """A system with the table `orders`, the pipeline `shop` to NATS, and `hooks` to a receiver that
    refuses order 7 until it is mended."""

    def __init__(self, folder: Path, database: Database, server: EmbeddedNats) -> None:
        # Spark has Unix sockets in its temporary folder, so the path must be short.
        self.temporary = Path(tempfile.mkdtemp(prefix="tr-"))
        self.database, self.server, self.data = database, server, folder / "data"
        self.url = f"http://127.0.0.1:{free_port()}"
        self.receiver = HttpReceiver()
        self.refuse(7)
        self.stream = f"S{database.name}"
        shop = {
            "type": "nats",
            "url": server.url,
            "stream": {"name": self.stream, "subjects": [f"{database.name}.>"]},
            "subject": f"{database.name}.{{table}}.{{operation}}",
        }
        hooks = {"type": "http", "url": self.receiver.url, "allow_private": True}
        settings = {
            "source": {"dsn": database.dsn, "slot": database.name[-63:]},
            "log": {"path": "data/log"},
            "data": "data",
            "http": {"port": int(self.url.rpartition(":")[2])},
            "pipelines": {
                "shop": {"encoding": "json", "sink": shop, "backfill": {"page_rows": 100}},
                "hooks": {"encoding": "json", "sink": hooks},
            },
        }
        (folder / "tailrace.yml").write_text(yaml.safe_dump(settings))
        folders = {"TMPDIR": str(self.temporary), "SPARK_LOCAL_DIRS": str(self.temporary)}
        super().__init__("run", "tailrace.yml", folder=folder, env=folders)
        self.receiver.__enter__()

    def close(self) -> None:
        self.receiver.__exit__()
        shutil.rmtree(self.temporary, ignore_errors=True)

    def refuse(self, *orders: int) -> None:
        """Have the receiver refuse these orders, and no others."""
        self.receiver.answer = partial(_refuse, orders)

    @property
    def token(self) -> str:
        return (self.data / "http.token").read_text().strip()

    def status(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = http.get(f"{self.url}/status").json()
        except httpx.TransportError:
            return {}
        return found

    def pipeline(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.status().get("pipelines", {}).get(name, {})
        return found

    def events(self, name: str) -> int:
        return int(self.pipeline(name).get("events", 0))

    def received(self) -> list[jetstream.Received]:
        return jetstream.received(self.server.url, self.stream)

    def stored(self) -> int:
        """How many messages NATS has. Unlike `received`, it needs no consumer."""
        return jetstream.stored(self.server.url, self.stream) or 0

    def posted(self) -> list[int]:
        """The ids of the orders that the receiver was sent."""
        bodies = [each.body.decode() for each in self.receiver.requests]
        return [int(found[1]) for body in bodies if (found := re.search(r'"id": ?(\d+),', body))]


def _refuse(orders: tuple[int, ...], request: HttpRequest) -> HttpResponse:
    body = request.body.replace(b" ", b"")
    refused = any(b'"id":%d,' % each in body for each in orders)
    return HttpResponse(status=422 if refused else 200)


class Browser:
    """A browser without a screen or a script, which keeps its cookie."""

    def __init__(self, running: Running) -> None:
        self._url = running.url
        self._client = httpx.Client(base_url=running.url, timeout=LONG_S)
        self._token = running.token

    def log_in(self) -> None:
        answer = self._post("/login", {"secret": self._token, "next": "/"})
        assert answer.status_code == 303, answer.text

    def get(self, path: str) -> Html:
        answer = self._client.get(path)
        assert answer.status_code == 200, answer.text
        return Html(answer.text)

    def document(self, path: str) -> dict[str, Any]:
        """A document of the API."""
        answer = self._client.get(f"/api/v1{path}")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def press(self, path: str, **fields: str) -> str:
        """Confirm an action; where its page leads."""
        page = Html(self._client.get(path, params=fields).text)
        form = {each["name"]: each.get("value", "") for each in page.all("input") if "name" in each}
        answer = self._post(path, form)
        assert answer.status_code == 303, answer.text
        return answer.headers["location"]

    def _post(self, path: str, form: dict[str, str]) -> httpx.Response:
        return self._client.post(path, data=form, headers={"origin": self._url})

    def close(self) -> None:
        self._client.close()
