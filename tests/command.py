"""The command line, as users and service managers run it.

`run` is for a command that ends by itself, `Service` for one that runs until it is stopped, each in
a process of its own, which is forked where `tests.forkserver` can do that. `call` runs a short
command in this process. None of them inherits settings: a test passes the variables that a command
shall read.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self
from unittest import mock

from tailrace.cli import main
from tests.forkserver import Forked, fork
from tests.waiting import LONG_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_NAMES = ("PG", "POSTGRES_", "TAILRACE_", "NATS_", "PYSPARK_", "SPARK_", "LOG_LEVEL", "PROMETHEUS_")
"""Prefixes of the variables that commands, libpq and Spark read."""
_TAIL_CHARACTERS = 3000


def command(*arguments: object) -> list[str]:
    """The arguments of a process that runs `tailrace`."""
    return [sys.executable, "-m", "tailrace.cli", *map(str, arguments)]


def run(
    *arguments: object,
    folder: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: str = "",
    timeout_s: float = LONG_S,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end. The caller checks the exit code."""
    with contextlib.ExitStack() as stack:
        given, output, errors = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(3))
        given.write(stdin.encode())
        given.seek(0)
        files = given.fileno(), output.fileno(), errors.fileno()
        process = _start(arguments, folder=folder, env=env, files=files)
        try:
            code = process.wait(timeout_s)
        finally:
            process.kill()
        return subprocess.CompletedProcess(process.args, code, _text(output), _text(errors))


def call(*arguments: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command to its end in this process. The caller checks the exit code."""
    words = ["tailrace", *map(str, arguments)]
    output, errors = io.StringIO(), io.StringIO()
    code: object = 0
    umask = os.umask(0o022)
    with (
        mock.patch.dict(os.environ, _environment(None), clear=True),
        mock.patch.object(sys, "argv", words),
        mock.patch.object(sys, "stdin", io.StringIO(stdin)),
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(errors),
    ):
        try:
            main()
        except SystemExit as ended:
            code = ended.code or 0
        finally:
            os.umask(umask)
    assert isinstance(code, int), code
    return subprocess.CompletedProcess(words, code, output.getvalue(), errors.getvalue())


def _start(
    arguments: Sequence[object],
    *,
    folder: Path | None,
    env: Mapping[str, str] | None,
    files: tuple[int, int, int],
    prefix: Sequence[str] = (),
) -> subprocess.Popen[bytes] | Forked:
    if not prefix and not any(name.startswith("PYTHON") for name in env or ()):
        return fork([*map(str, arguments)], folder=folder, env=_environment(env), files=files)
    stdin, stdout, stderr = files
    return subprocess.Popen(
        [*prefix, *command(*arguments)],
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        cwd=folder,
        env=_environment(env),
    )


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _environment(added: Mapping[str, str] | None) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(_NAMES)}
    return clean | dict(added or {})


class Service:
    """A command that runs until it is stopped; it can be started again.

    It runs in `folder` and appends its output to `file` there. `prefix` is a program that executes
    it, for example prlimit. The context manager kills it if it still runs at the end of the block.
    """

    def __init__(
        self,
        *arguments: object,
        folder: Path,
        env: Mapping[str, str] | None = None,
        file: str = "output",
        prefix: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self._arguments = arguments
        self._prefix = prefix
        self._added = env
        self._file = folder / file
        self._process: subprocess.Popen[bytes] | Forked | None = None

    def start(self) -> Self:
        """Start it, without waiting for anything."""
        assert not self.alive, f"{self._arguments} still runs"
        with self._file.open("ab") as output, Path(os.devnull).open("rb") as nothing:
            self._process = _start(
                self._arguments,
                folder=self.folder,
                env=self._added,
                files=(nothing.fileno(), output.fileno(), output.fileno()),
                prefix=self._prefix,
            )
        return self

    @property
    def output(self) -> str:
        """All output so far, of every start."""
        return self._file.read_text(errors="replace") if self._file.exists() else ""

    @property
    def alive(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """The exit code; None while it runs."""
        return self._started.poll()

    @property
    def pid(self) -> int:
        return self._started.pid

    @property
    def _started(self) -> subprocess.Popen[bytes] | Forked:
        assert self._process is not None, f"{self._arguments} was never started"
        return self._process

    def wait_until(
        self, condition: Callable[[], object], what: str = "", timeout_s: float = LONG_S
    ) -> None:
        """Wait until a condition holds; fail at once if the process ends before."""

        def holds() -> object:
            assert self.alive, self._report(f"exit code {self.exit_code} before {what}")
            return condition()

        wait_for(holds, lambda: self._report(what), timeout_s)

    def wait(self, timeout_s: float = LONG_S) -> int:
        """The exit code, when it has ended; fail if it still runs after the timeout."""
        try:
            return self._started.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(self._report(f"still running after {timeout_s} s")) from None

    def stop(self, timeout_s: float = LONG_S) -> int:
        """Stop it with SIGTERM; the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait(timeout_s)

    def kill(self) -> None:
        """End it with SIGKILL, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def signal(self, number: int) -> None:
        """Send a signal, if it runs."""
        self._started.send_signal(number)

    def _report(self, what: str) -> str:
        return f"{what}; the end of {self._file}:\n{self.output[-_TAIL_CHARACTERS:]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
