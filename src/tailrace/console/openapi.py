"""The description of `/api/v1`, made from the pages and actions themselves."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from tailrace import __version__
from tailrace.access.identity import Level

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tailrace.console.page import Action, Document, Page

_ERRORS = {
    "400": "The body or a parameter is invalid.",
    "401": "No token, an expired one, or a wrong one.",
    "403": "The token may only read, or the request comes from another site.",
    "404": "There is no such pipeline, message, backfill, topic or consumer group.",
    "409": "The system is not in a state that allows it.",
    "502": "PostgreSQL does not answer.",
    "503": "The log cannot be read.",
}


def openapi(pages: Iterable[Page], actions: Iterable[Action[Any]]) -> Document:
    """The OpenAPI document."""
    paths: dict[str, dict[str, Any]] = {}
    for page in pages:
        paths.setdefault(f"/api/v1{page.path}", {})["get"] = _reading(page)
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
                }
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


def _reading(page: Page) -> Document:
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
        "responses": _responses("200", "The document of the page."),
    }
    if page.private:
        names = " and ".join(f"`{each}`" for each in page.private)
        operation["description"] = f"Without a login or a token, {names} are null."
    if page.level > Level.PUBLIC:
        operation["security"] = [{"token": []}]
    return operation


def _doing(action: Action[Any]) -> Document:
    dry_run = {
        "name": "dry_run", "in": "query", "schema": {"type": "boolean", "default": False},
        "description": "Only show the effect.",
    }  # fmt: skip
    return {
        "operationId": action.name,
        "summary": action.title,
        "parameters": [*_path_parameters(action.path), dry_run],
        "requestBody": {
            "content": {"application/json": {"schema": action.body.model_json_schema()}}
        },
        "responses": _responses("202", "Ordered."),
        "security": [{"token": []}],
    }


def _path_parameters(path: str) -> Iterator[Document]:
    for name in re.findall(r"\{(\w+)\}", path):
        yield {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _responses(code: str, description: str) -> Document:
    error = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}}
    document = {"content": {"application/json": {"schema": {"type": "object"}}}}
    return {code: {"description": description, **document}} | {
        each: {"description": text, **error} for each, text in _ERRORS.items()
    }
