"""Sessions with staging that end in the moment in which their connection breaks."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow as pa

from millstream.staging import Server, connect
from proxy import Proxy

SESSIONS = 120


def end_many(folder: str) -> None:
    """Open sessions, and reset their connections about when they end."""
    batch = pa.record_batch({"a": pa.array(range(100))})
    times = random.Random(1)
    with Server(folder, http_port=None) as server, Proxy("127.0.0.1", int(server.url.rpartition(":")[2])) as proxy:
        for number in range(SESSIONS):
            with connect(proxy.url) as client:
                session = client.open("s", f"source{number}", incarnation="one", schema=batch.schema)
                session.send(0, batch)
                if number % 2:
                    session.wait(100, timeout=5)
                trouble = threading.Timer(times.random() * 0.002, proxy.reset)
                trouble.start()
                time.sleep(times.random() * 0.002)
                session.close()
                trouble.join()
        with connect(server.url) as client:
            batches = client.read("s", 0, end=client.stream("s").end)
            print(sum(one.num_rows for one in batches))


def test_a_session_may_end_while_its_connection_breaks(tmp_path: Path) -> None:
    """gRPC ends the process of whoever ends a stream twice, as client and failing read did with a half-closed one."""
    program = f"import test_session_ends as test; test.end_many({str(tmp_path / 'staging')!r})"
    here = Path(__file__).parent
    found = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=here,
        env={"PYTHONPATH": f"{here}:{here.parent}", "PATH": ""},
    )
    assert found.returncode == 0, found.stderr[-2_000:]
    stored = int(found.stdout)
    assert stored % 100 == 0
    assert SESSIONS // 2 * 100 <= stored <= SESSIONS * 100, "what was acknowledged is there, nothing is there twice"
