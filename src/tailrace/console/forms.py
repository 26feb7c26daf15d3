"""Forms: what a browser sends, read with a limit, and the fields of an action's model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, get_origin
from urllib.parse import parse_qsl

from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

from tailrace.observe.endpoints import read_body
from tailrace.settings import error_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.requests import Request

    from tailrace.console.page import Body

M = TypeVar("M", bound=BaseModel)
_MAX_FIELDS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class FormField:
    """A field of a form."""

    name: str
    label: str
    kind: str
    """The type of an `<input>`."""
    value: str
    required: bool


async def read_form(request: Request) -> dict[str, str]:
    """The fields of a form. Raises HTTPException for anything else."""
    content = await read_body(request)
    try:
        pairs = parse_qsl(
            content.decode(), keep_blank_values=True, max_num_fields=_MAX_FIELDS, errors="strict"
        )
    except ValueError as error:
        raise HTTPException(400, "the body must be the fields of a form") from error
    return dict(pairs)


def parse(model: type[M], values: Mapping[str, Any]) -> M:
    """A model from the fields of a form; empty fields count as missing. Raises HTTPException."""
    given = {
        name: value for name, value in values.items() if name in model.model_fields and value != ""
    }
    return validated(lambda: model.model_validate(given))


def validated(read: Callable[[], M]) -> M:
    """What `read` returns; a ValidationError becomes a 400 that names the field."""
    try:
        return read()
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        text = error_text(first)
        raise HTTPException(400, f"{place}: {text}" if place else text) from error


def fields_of(model: type[Body], values: Mapping[str, str | int]) -> list[FormField]:
    """The fields of a model, filled with values. A form has no lists: they are for programs."""
    kinds: dict[Any, str] = {bool: "checkbox", float: "number", int: "number"}
    return [
        FormField(
            name=name,
            label=field.description or name,
            kind="hidden" if name in model.resolved else kinds.get(field.annotation, "text"),
            value=str(values.get(name, "")),
            required=field.is_required(),
        )
        for name, field in model.model_fields.items()
        if get_origin(field.annotation) is not tuple
    ]
