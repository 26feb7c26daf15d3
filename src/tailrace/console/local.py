"""The documents and actions of `/api/v1` without a server: on the files of the data folder.

Needs no running system. What only the process `serve` knows is missing: rates, trends, the slot as
PostgreSQL describes it, and lag in seconds.
"""

from __future__ import annotations

import getpass
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote

import orjson
from pydantic import ValidationError

from tailrace.access.access import Access
from tailrace.console.catalog import ACTIONS, PAGES
from tailrace.console.operations import sent
from tailrace.console.page import Action, Page
from tailrace.console.system import System
from tailrace.console.trends import Trends
from tailrace.errors import ConfigError
from tailrace.observe.figure import as_json
from tailrace.observe.kept import SlotFigures
from tailrace.run.overview import Overview
from tailrace.settings import error_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pydantic import BaseModel

    from tailrace.config import Config
    from tailrace.console.operations import Body
    from tailrace.console.page import Document, Effect
    from tailrace.observe.figures import SystemFigures

E = TypeVar("E", Page, Action[Any])


class Local:
    """The files of a data folder, as the operations of a system."""

    def __init__(self, config: Config) -> None:
        self._overview = Overview(config, SlotFigures)
        trends = Trends(config.data, self._figures)
        self._system = System(config, self._figures, trends, Access(config, ""))

    def _figures(self) -> SystemFigures:
        """The figures. A lag in seconds needs a history: one reading knows only where it is 0."""
        figures = self._overview.read()
        pipelines = (
            replace(each, lag_s=0.0 if each.position and each.position == figures.log.end else None)
            for each in figures.pipelines
        )
        return replace(figures, pipelines=tuple(pipelines))

    def get(self, path: str, query: Mapping[str, object] | None = None) -> Document:
        """The document of a page."""
        page, parts = _find(PAGES, path)
        return _plain(page.view(self._system, {**sent(query), **parts}))

    def effect(self, path: str, body: Body) -> Effect:
        """What an action would do."""
        action, parts = _find(ACTIONS, path)
        return action.effect(self._system, parts, _valid(action.body, body))

    def perform(self, path: str, body: Body) -> Document:
        """Do it, as the user of this process."""
        action, parts = _find(ACTIONS, path)
        user = getpass.getuser()
        done = action.perform(self._system, parts, _valid(action.body, body), user)
        return _plain(done.document)


def _find(entries: Iterable[E], path: str) -> tuple[E, dict[str, str]]:
    """The page or action of a path, and the parameters in it."""
    for each in entries:
        pattern = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", each.path)
        if match := re.fullmatch(pattern, path):
            return each, {name: unquote(text) for name, text in match.groupdict().items()}
    raise ConfigError(f"there is no {path}")


def _valid(model: type[BaseModel], body: Body) -> Any:
    try:
        return model.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        text = error_text(first)
        raise ConfigError(f"{place}: {text}" if place else text) from None


def _plain(content: Document) -> Document:
    """The document as a client of the API sees it."""
    document: Document = orjson.loads(as_json(content))
    return document
