"""A settings file that is edited while the system runs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import yaml

from tailrace import config
from tailrace.run.reloads import Reloads

if TYPE_CHECKING:
    from tests.unit.console.house import House


class Settings:
    """A house whose settings file can change, as `tailrace run` has loaded it."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.file = house.data.parent / "tailrace.yml"
        self.values: dict[str, Any] = json.loads(json.dumps(house.folder.settings))
        self.values["source"] = {"dsn": "postgresql://u:canary-dsn@127.0.0.1:1/x"}
        self.write()
        self.reloads = Reloads(self.file, house.data, lambda: config.load(self.file))
        self.reloads.begin(config.load(self.file))

    def write(self) -> None:
        self.file.write_text(yaml.safe_dump(self.values))
