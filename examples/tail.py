"""Print all changes of a log: python examples/tail.py tailrace-data/log"""

import sys
from pathlib import Path

from tailrace import Earliest, Log, read_changes

log = Log.open(Path(sys.argv[1]))
for change in read_changes(log, log.resolve(Earliest())):
    table = change.relation.qualified_name if change.relation else change.prefix
    print(change.position.event_id, change.op.value, table, change.before, change.after)
