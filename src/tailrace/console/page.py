"""What a page and an action are. `tailrace.console.site` lists them all."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from tailrace.access.identity import Level

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tailrace.console.system import System

Document = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A parameter of a page, in its path or its query."""

    name: str
    description: str
    default: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page, which answers one question. Its document is also what the API returns."""

    name: str
    """Of its template, and of the operation in the API."""
    path: str
    """Under `/console` and under `/api/v1`."""
    title: str
    question: str
    view: Callable[[System, Mapping[str, str]], Document]
    """Reads the system. The mapping has the parameters of path and query."""
    level: Level = Level.PUBLIC
    private: tuple[str, ...] = ()
    """Members of the document that need the level VIEWER, of a page that does not."""
    query: tuple[Parameter, ...] = ()
    menu: bool = True
    live: bool = True
    """Whether the page is refreshed while it is open."""
    version: Callable[[System], object] | None = None
    """For a view that takes time: while this is equal, nothing has changed."""
    at_once: int = 0
    """Max views at a time, if a view waits for a server or reads much; 0: no limit."""

    @property
    def address(self) -> str:
        """The path of the page; the overview is at the root."""
        return "/" if self.name == "overview" else f"/console{self.path}"

    def read(self, system: System, query: Mapping[str, str], level: Level) -> Document:
        """The document for a reader of this level: what is private is None below VIEWER."""
        document = self.view(system, query)
        hidden = () if level >= Level.VIEWER else self.private
        return document | dict.fromkeys(hidden)


class Body(BaseModel):
    """What an action needs to know: a form of the console, or the JSON body of the API."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    resolved: ClassVar[frozenset[str]] = frozenset()
    """Fields that only an effect fills in: no form asks for them."""


class Reasoned(Body):
    """An action whose reason is recorded."""

    reason: str = Field(default="", max_length=500, description="Why; recorded in the audit file.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What an action will do, one sentence per line. A warning says what cannot be undone."""

    lines: tuple[str, ...]
    warning: str = ""
    resolved: Mapping[str, str | int] = field(default_factory=dict)
    """Fields of the body with which the action does this and no more, whenever it is confirmed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What an action has done. `document` is for programs, `text` for people."""

    text: str
    page: str
    """The page that shows it."""
    document: Document


B = TypeVar("B", bound=Body)


@dataclass(frozen=True, slots=True, kw_only=True)
class Action(Generic[B]):
    """Something that an operator may do. The parameters are those of its path."""

    name: str
    path: str
    """Under `/console` and under `/api/v1`."""
    title: str
    body: type[B]
    effect: Callable[[System, Mapping[str, str], B], Effect]
    perform: Callable[[System, Mapping[str, str], B, str], Done]
    """With the name of the user."""
    danger: bool = False

    @property
    def address(self) -> str:
        """The path of its confirmation page."""
        return f"/console{self.path}"
