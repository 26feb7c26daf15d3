import time
from collections import Counter
from tests.integration.mirror.test_faults import Bank, ACCOUNTS
from tests.integration.mirror.system import mirror
import tailrace.client.transactions as T

def test_probe(system, copy, tmp_path):
    system.atomic = True
    system.database.execute(f"CREATE TABLE accounts (id int PRIMARY KEY, balance int, note text); INSERT INTO accounts SELECT g, 100, 'n' FROM generate_series(0, {ACCOUNTS - 1}) g")
    system.start()
    seen = Counter(); odd=[]
    take = T.Transactions._take
    def traced(self, arrivals):
        a = arrivals[-1]
        h = a.headers
        seen[("pending0" if not a.pending else "more", bool(h.get("Nats-Batch-Id")), bool(h.get("Nats-Batch-Commit")))] += 1
        if not a.pending and h.get("Nats-Batch-Id") and not h.get("Nats-Batch-Commit"): odd.append((a.sequence, dict(h)))
        return take(self, arrivals)
    T.Transactions._take = traced
    bank = Bank(system.database, 1)
    try:
        with mirror(system, "accounts", f"sqlite:///{tmp_path}/x.db") as m:
            m.follows()
            time.sleep(15)
    finally:
        bank.stop()
    print("PROBE", seen, odd[:5], m.status)
