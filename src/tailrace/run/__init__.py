"""`tailrace run`: settings become supervised processes, with status, metrics and HTTP."""
