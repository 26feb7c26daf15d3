"""Which libraries a module loads, in an interpreter of its own."""

from __future__ import annotations

import subprocess
import sys


def loaded(module: str, *libraries: str) -> list[str]:
    """Those of the libraries that an import of the module loads."""
    program = f"import sys, {module}; print(*sorted({{*{libraries!r}}} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    return done.stdout.decode().split()
