"""Options of a command from a settings model: one parameter per field, described once.

    class Server(Section):
        port: int = Field(default=80, ge=0, description="Port to listen on.")
        user: Annotated[str, Flag(env="APP_USER")] = Field(default="", description="User name.")

    @with_options(Server)
    def serve(settings: Server, verbose: bool = False) -> None: ...

The command gets `--port` and `--user` (also from APP_USER), with the descriptions, defaults and
limits of the fields, and is called with one validated `Server`.
"""

from __future__ import annotations

import functools
import inspect
import types
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin, get_type_hints

import typer
from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, SecretStr, ValidationError
from pydantic_core import PydanticUndefined

from tailrace.errors import ConfigError
from tailrace.settings import Flag, error_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic.fields import FieldInfo


def with_options(model: type[BaseModel]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Replace the parameter annotated with the model by one option per field."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        hints = get_type_hints(command, include_extras=True)
        signature = inspect.signature(command)
        target = next(name for name, hint in hints.items() if hint is model)
        fields = model.model_fields
        options = [_parameter(name, field) for name, field in fields.items()]
        others = [
            parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
            for name, parameter in signature.parameters.items()
            if name != target
        ]

        @functools.wraps(command)
        def run(**arguments: Any) -> Any:
            values = {name: arguments.pop(name) for name in fields}
            return command(**{target: _validated(model, values)}, **arguments)

        parameters = [*others, *options]
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {part.name: part.annotation for part in parameters}
        return run

    return decorate


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    flag = _flag(field)
    spelled = _option_name(name, field)
    limits: dict[str, Any] = {}
    for part in field.metadata:
        match part:
            case Ge(ge=bound) | Gt(gt=bound):
                limits["min"] = bound
            case Le(le=bound) | Lt(lt=bound):
                limits["max"] = bound
    kind, default = _kind(field.annotation), _default(field)
    option = typer.Option(
        *([spelled] if kind is not bool or flag.switch else [f"{spelled}/--no-{spelled[2:]}"]),
        envvar=[flag.env, *flag.env_aliases] if flag.env else None,
        metavar=flag.metavar or None,
        help=field.description,
        show_default=default not in ("", None, (), []),
        **limits,
    )
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option]
    )


def _flag(field: FieldInfo) -> Flag:
    return next((part for part in field.metadata if isinstance(part, Flag)), Flag())


def _option_name(name: str, field: FieldInfo) -> str:
    return _flag(field).name or "--" + name.replace("_", "-")


def _default(field: FieldInfo) -> Any:
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return ...
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    return list(value) if isinstance(value, tuple) else value


def _kind(annotation: Any) -> Any:
    """The type for typer.

    | model             | typer       |
    |-------------------|-------------|
    | SecretStr         | str         |
    | Annotated[X, ...] | X           |
    | X or None         | X or None   |
    | tuple[X, ...]     | list[X]     |

    Pydantic checks what typer does not.
    """
    if annotation is SecretStr:
        return str
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kind(arguments[0])
    if origin in (Union, types.UnionType):
        return Union[tuple(_kind(part) for part in arguments)]  # noqa: UP007 - built at run time
    if origin is tuple:
        return list[_kind(arguments[0])]  # type: ignore[misc]
    return annotation


def _validated(model: type[BaseModel], values: dict[str, Any]) -> BaseModel:
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = str(first["loc"][0]) if first["loc"] else ""
        label = f"{_label(field, model.model_fields[field])}: " if field else ""
        raise ConfigError(f"{label}{error_text(first)}") from error


def _label(name: str, field: FieldInfo) -> str:
    """The option and its environment variable: a user may have set either."""
    flag, option = _flag(field), _option_name(name, field)
    return f"{option} ({flag.env})" if flag.env else option
