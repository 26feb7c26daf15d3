"""The description of `/api/v1`, made from the pages and actions themselves."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from tailrace import __version__
from tailrace.access.identity import Level
from tailrace.run.admission import CSRF_HEADER

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tailrace.console.page import Action, Document, Page

_ERRORS = {
    "400": "The body or a parameter is invalid.",
    "401": "No token, an expired one, or a wrong one.",
    "403": "The token may only read, or the request comes from another site.",
    "404": "There is no such pipeline, message, backfill, topic or consumer group.",
    "409": "The system is not in a state that allows it.",
    "413": "The body is too large.",
    "421": "`Host` is not a name of this server: see `http.hosts` of the settings.",
    "502": "PostgreSQL does not answer.",
    "503": "The log cannot be read, or too many requests wait.",
}


def openapi(
    pages: Iterable[Page], actions: Iterable[Action[Any]], *, cookie: str, needs_login: bool
) -> Document:
    """The OpenAPI document.

    `cookie` is that of sessions. With `needs_login`, pages that are public otherwise need it, too.
    """
    paths: dict[str, dict[str, Any]] = {}
    for page in pages:
        paths.setdefault(f"/api/v1{page.path}", {})["get"] = _reading(page, needs_login)
    for action in actions:
        paths.setdefault(f"/api/v1{action.path}", {})["post"] = _doing(action)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tailrace",
            "version": __version__,
            "description": "What the pages of the console show, and what their buttons do.",
        },
        "paths": paths,
        "components": {
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "http.token, or a token of `tailrace token create`.",
                },
                "session": {
                    "type": "apiKey",
                    "in": "cookie",
                    "name": cookie,
                    "description": "That of a browser. What changes something needs the header "
                    f"`{CSRF_HEADER}` as well.",
                },
            },
            "schemas": {"Error": _ERROR},
        },
    }


_ERROR = {
    "type": "object",
    "properties": {
        "error": {"type": "string", "description": "Code and text."},
        "hint": {"type": "string", "description": "What to do about it, if that is known."},
    },
    "required": ["error"],
}


_SECURITY: list[dict[str, list[str]]] = [{"token": []}, {"session": []}]


def _reading(page: Page, needs_login: bool) -> Document:
    query = [
        {
            "name": each.name, "in": "query", "description": each.description,
            "schema": {"type": "string", "default": each.default},
        }
        for each in page.query
    ]  # fmt: skip
    operation: Document = {
        "operationId": page.name,
        "summary": page.question,
        "parameters": [*_path_parameters(page.path), *query],
        "responses": _responses({"200": "The document of the page."}),
    }
    if page.private:
        names = " and ".join(f"`{each}`" for each in page.private)
        operation["description"] = f"Without a login or a token, {names} are null."
    if needs_login or page.level > Level.PUBLIC:
        operation["security"] = _SECURITY
    return operation


def _doing(action: Action[Any]) -> Document:
    dry_run = {
        "name": "dry_run", "in": "query", "schema": {"type": "boolean", "default": False},
        "description": "Only show the effect. `resolved` of the response has the fields with which "
        "the action does that and no more, also if it is sent later.",
    }  # fmt: skip
    csrf = {
        "name": CSRF_HEADER, "in": "header", "schema": {"type": "string"},
        "description": "With a session: the field `csrf` of its forms.",
    }  # fmt: skip
    return {
        "operationId": action.name,
        "summary": action.title,
        "parameters": [*_path_parameters(action.path), dry_run, csrf],
        "requestBody": {
            "content": {"application/json": {"schema": action.body.model_json_schema()}}
        },
        "responses": _responses({"200": "The effect, with `dry_run`.", "202": "Ordered."}),
        "security": _SECURITY,
    }


def _path_parameters(path: str) -> Iterator[Document]:
    for name in re.findall(r"\{(\w+)\}", path):
        yield {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _responses(found: Mapping[str, str]) -> Document:
    error = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}}
    document = {"content": {"application/json": {"schema": {"type": "object"}}}}
    return {code: {"description": text, **document} for code, text in found.items()} | {
        code: {"description": text, **error} for code, text in _ERRORS.items()
    }
