"""Pages as HTML: the templates, what they may call, and the headers that every page has."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import jinja2
from starlette.responses import HTMLResponse

from tailrace import __version__
from tailrace.console import chart, numbers, pictures
from tailrace.console.numbers import Meter
from tailrace.run.admission import identity_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from tailrace.access.access import Access
    from tailrace.console.page import Page

HEADERS = {
    # Everything comes from this server; nothing is inline. The rest is not part of default-src.
    "content-security-policy": (
        "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # Not `no-referrer`: browsers then hide the origin of forms, which we check.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


class Rendering:
    """The templates, with the pages of the menu."""

    def __init__(self, menu: Sequence[Page], access: Access) -> None:
        self._access = access
        self._templates = jinja2.Environment(
            loader=jinja2.PackageLoader("tailrace.console"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters |= numbers.FORMATS | {"moment": numbers.moment, "plain": _plain}
        self._templates.globals |= {
            "menu": menu,
            "version": __version__,
            "chart": chart.chart,
            "table_of": chart.table_of,
            "path_of": pictures.path_of,
            "overview_graphs": pictures.overview_graphs,
            "pipeline_graphs": pictures.pipeline_graphs,
            "unknown": numbers.UNKNOWN,
        }
        self._templates.globals["parts"] = self._templates.get_template("parts.html").module

    def page(
        self, request: Request, template: str, values: Mapping[str, Any], status: int = 200
    ) -> Response:
        """A whole page."""
        text = self._templates.get_template(template).render(self._values(request, values))
        return HTMLResponse(text, status, headers=HEADERS)

    def live(self, request: Request, template: str, values: Mapping[str, Any]) -> str:
        """The part of a page that changes while it is open."""
        found = self._templates.get_template(template)
        context = found.new_context(self._values(request, values))
        return "".join(found.blocks["live"](context))

    def _values(self, request: Request, values: Mapping[str, Any]) -> dict[str, Any]:
        identity = identity_of(request)
        return {
            "path": request.url.path,
            "identity": identity,
            "has_users": self._access.has_users,
            "operator": identity.level >= identity.level.OPERATOR,
            "m": Meter(),
            "page": None,
            "live": False,
            **values,
        }


def _plain(value: object) -> str:
    """A value of a document as text."""
    if isinstance(value, str):
        return value
    if value is None:
        return numbers.UNKNOWN
    return json.dumps(value, ensure_ascii=False, default=str)
