"""Which system a command reads or changes: the options `--at`, `--token-file` and so on.

    @with_options(At)
    def pause(name: Name, *, at: At, config: options.ConfigFile = None) -> None:
        at.system(config).perform(...)

Without `--at` that is the data folder of the settings file, and no system has to run.
"""

# ruff: noqa: PLC0415 - heavy modules are loaded when a command runs, not for --help

from __future__ import annotations

import functools
import inspect
from pathlib import Path  # noqa: TC003 - pydantic reads the annotations
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from pydantic import Field, SecretStr

from tailrace.cli import options
from tailrace.errors import ConfigError
from tailrace.settings import Flag, Section

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.console.operations import Operations

_VARIABLE = "TAILRACE_AT"


class At(Section):
    """The address of a running system, and what it needs to let a command in."""

    at: Annotated[str, Flag(env=_VARIABLE, metavar="URL")] = Field(
        default="",
        description="Ask the system at this address of its console, such as "
        "https://db1.example.com:9090, instead of the files of this machine.",
    )
    token: Annotated[SecretStr, Flag(env="TAILRACE_TOKEN", metavar="TOKEN")] = Field(
        default=SecretStr(""),
        description="Token for --at, from `tailrace token create` there. All users of this machine "
        "can read a command line: use the variable or --token-file.",
    )
    token_file: Annotated[Path | None, Flag(metavar="FILE")] = Field(
        default=None, description="File whose first line is the token."
    )
    ca: Annotated[Path | None, Flag(env="TAILRACE_CA", metavar="FILE")] = Field(
        default=None,
        description="PEM file of the authorities to trust for https. Default: those of the system.",
    )
    insecure: Annotated[bool, Flag(env="TAILRACE_AT_INSECURE", switch=True)] = Field(
        default=False, description="Send the token without TLS, also beyond this machine."
    )

    def system(self, config: Path | None, *, log: Path | None = None) -> Operations:
        """The system at the address, or the files of the settings."""
        if not self.at:
            from tailrace.console.local import Local

            return Local(options.settings(config, log=log))
        from tailrace.console.remote import Remote

        return Remote(self.at, self._secret(), ca=self.ca, insecure=self.insecure)

    def _secret(self) -> str:
        given = self.token.get_secret_value()
        if self.token_file is None:
            return given.strip()
        text = options.read_password(self.token_file).strip()
        if not text:
            raise ConfigError(f"{self.token_file} is empty", hint="Its first line is the token.")
        return text


def here_only(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command that cannot be used with `--at`: it says so, and does nothing."""
    hints = get_type_hints(command, include_extras=True)
    option = typer.Option("--at", envvar=_VARIABLE, hidden=True)
    parameters = [
        *(
            each.replace(annotation=hints[name])
            for name, each in inspect.signature(command).parameters.items()
        ),
        inspect.Parameter(
            "at", inspect.Parameter.KEYWORD_ONLY, default="", annotation=Annotated[str, option]
        ),
    ]

    @functools.wraps(command)
    def run(*arguments: Any, at: str = "", **more: Any) -> Any:
        if at:
            raise ConfigError(
                "this command works on the files of one machine, not on the system at --at",
                hint=f"Run it on that machine, or here without --at and {_VARIABLE}.",
            )
        return command(*arguments, **more)

    run.__signature__ = inspect.signature(command).replace(  # type: ignore[attr-defined]
        parameters=parameters
    )
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run
