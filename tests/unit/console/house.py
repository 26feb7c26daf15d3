"""The console over status files, a log and parked messages of the test, and its visitors."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from datetime import UTC, datetime
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import httpx

from tailrace.access import password
from tailrace.config import Config
from tailrace.console.console import Console
from tailrace.observe.copies import BackfillFigures, SnapshotFigures
from tailrace.observe.figures import CaptureFigures, PipelineFigures, ProcessFigures, RefusedFigures
from tailrace.observe.kept import SlotFigures
from tailrace.observe.replica import FollowerFigures, LeaderFigures
from tailrace.parking.parking import folder_of
from tailrace.run import status
from tailrace.run.endpoints import Endpoints
from tailrace.run.overview import Overview
from tailrace.run.pull_endpoints import clerks_of
from tailrace.run.status import PipelinesStatus, RunStatus
from tests.unit.parking.system import System
from tests.unit.run.test_reset import Folder

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace.access.access import Access
    from tailrace.console.site import Site

TOKEN = "0123456789abcdef"
PASSWORD = "correct horse"
HASH = password.hashed(PASSWORD)
ORIGIN = "http://127.0.0.1:9090"
CHANGE = "0000000000001200-0"
"""The first change of the second transaction in the log."""
NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
RUNNING = PipelineFigures(
    state="running", position="0/1832C00.4", events=288, bytes=4096, batches=7,
    latency_ms_p50=40.0, latency_ms_p99=250.0, last_committed_at=NOW,
)  # fmt: skip
SLOT = SlotFigures(active=True, kept_wal_bytes=51344, lag_bytes=120, tables=2, checked_at="now")
USERS = {
    "ann": {"role": "operator", "password": HASH},
    "vic": {"role": "viewer", "password": HASH},
}


class House:
    """A data folder with one pipeline, `shop`, and the console over it."""

    def __init__(self, data: Path, **keys: Any) -> None:
        self.folder = Folder(data)
        self.data = data
        http = {"token": TOKEN} | keys.pop("http", {})
        self.config = Config.model_validate(
            self.folder.settings | {"http": http, "source": {"dsn": "host=127.0.0.1 port=1"}} | keys
        )
        self.where = status.folder(data)
        status.clear(self.where)
        self.slot = SLOT
        self.failing: list[str] = []
        self.stopping = False
        self.overview = Overview(self.config, lambda: self.slot)
        self.console = Console(self.config, self.overview)
        self.clerks = clerks_of(self.config)
        self.application = Endpoints(
            self.config, self.overview, None, token=TOKEN, clerks=self.clerks,
            console=self._site,
        ).application()  # fmt: skip

    def _site(self, access: Access) -> Site:
        self.access = access
        return self.console.site(
            access, failing=lambda: self.failing, stopping=lambda: self.stopping
        )

    def healthy(self) -> None:
        """Everything runs, and the pipeline is at the end of the log."""
        end = self.folder.log.end().position
        self.write(replace(RUNNING, position=str(end)))
        status.write(self.where, "capture", CaptureFigures(state="streaming", changes=900))
        processes = {
            name: ProcessFigures(state="running", up=True) for name in ("capture", "pipelines")
        }
        status.write(self.where, "run", RunStatus(started_at=time.time(), processes=processes))
        self.folder.delivered(end)

    def troubled(self, text: str = "the receiver answers 422") -> None:
        """Everything that can be wrong is; error texts are `text`."""
        self.folder.delivered(self.folder.positions[5])
        self.slot = replace(SLOT, kept_wal_bytes=2 << 30, error=f"lost: {text}")
        self.failing = ["schemas"]
        refused = RefusedFigures(
            pipeline="shop", destination=text, code="X", reason=text, hint=text
        )
        figures = replace(
            RUNNING, state="failed", code="POISONED", message=text, parked=3,
            position=str(self.folder.positions[5]), refused=(refused,),
        )  # fmt: skip
        self.write(figures, failed=text)
        follower = FollowerFigures(address="db2:7432", state="REPLICA_REFUSED", reason=text)
        leader = LeaderFigures(mode="sync", quorum=1, in_quorum=False, followers=(follower,))
        status.write(self.where, "replicate", leader)
        dead = ProcessFigures(state="failed", code="GAP", exit_code=10, restarts=3)
        status.write(self.where, "run", RunStatus(started_at=0, processes={"capture": dead}))

    def write(self, figures: PipelineFigures, failed: str = "") -> None:
        backfill = BackfillFigures(
            id="fill-1", pipeline="shop", table="public.t", share=0.4, rows=40, seconds=2.0,
            state="failed" if failed else "running", error=failed,
        )  # fmt: skip
        snapshot = SnapshotFigures(
            id="snap-1", table="public.t", state="complete", share=1.0, rows=40, seconds=2.0
        )
        report = PipelinesStatus(
            state="running", pipelines={"shop": figures},
            backfills=(backfill,), snapshots=(snapshot,),
        )  # fmt: skip
        status.write(self.where, "pipelines", report)

    def park(self, key: str = "a") -> System:
        """Two messages of a key and one of key b are parked."""
        made = System(folder_of(self.data, "shop"))
        made.sink.bad = {"a1", "b1"}
        made.deliver([("a1", key), ("b1", "b"), ("a2", key), ("c1", "c")], lsn=100)
        made.plan()
        return made

    def audit(self) -> str:
        file = self.data / "audit.jsonl"
        return file.read_text() if file.exists() else ""


class Visitor:
    """A browser without a screen: cookies, forms, and the headers that browsers send."""

    def __init__(self, house: House, *, address: str = "127.0.0.1") -> None:
        self.house = house
        self.cookies: dict[str, str] = {}
        self.address = address

    def ask(
        self, method: str, path: str, *, content: bytes | str = b"", **headers: str
    ) -> httpx.Response:
        answer = asyncio.run(self.asked(method, path, content=content, **headers))
        for name, value in answer.cookies.items():
            self.cookies[name] = value
        return answer

    async def asked(
        self, method: str, path: str, *, content: bytes | str = b"", **headers: str
    ) -> httpx.Response:
        """The same, for requests in parallel; cookies of the answer are not kept."""
        transport = httpx.ASGITransport(
            self.house.application, raise_app_exceptions=False, client=(self.address, 40000)
        )
        named = {"accept": "text/html"} | {k.replace("_", "-"): v for k, v in headers.items()}
        if self.cookies and "authorization" not in named:
            named["cookie"] = "; ".join(f"{k}={v}" for k, v in self.cookies.items())
        async with httpx.AsyncClient(transport=transport, base_url=ORIGIN) as client:
            return await client.request(method, path, headers=named, content=content)

    def get(self, path: str, **headers: str) -> httpx.Response:
        return self.ask("GET", path, **headers)

    def page(self, path: str) -> Html:
        answer = self.get(path)
        assert answer.status_code == 200, answer.text
        return Html(answer.text)

    def submit(self, path: str, **fields: str) -> httpx.Response:
        headers = {"content_type": "application/x-www-form-urlencoded", "origin": ORIGIN}
        return self.ask("POST", path, content=urlencode(fields), **headers)

    def log_in(self, name: str = "", secret: str = TOKEN) -> httpx.Response:
        return self.submit("/login", name=name, secret=secret, next="/")

    @property
    def csrf(self) -> str:
        return self.page("/").value("csrf")

    def do(self, path: str, **fields: str) -> httpx.Response:
        """Press the button of a confirmation page, as its form says."""
        page = self.page(f"{path}?{urlencode(fields)}")
        form = {
            each["name"]: each.get("value") or "" for each in page.all("input") if "name" in each
        }
        return self.submit(path, **form)


class Html(HTMLParser):
    """The elements of a page, and its text."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.source = source
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def value(self, name: str) -> str:
        """The value of a field."""
        return next(each["value"] for each in self.all("input") if each.get("name") == name)
