"""A PostgreSQL server of the tests' own, in a temporary folder, with logical replication switched on.

    with Postgres(tmp_path) as postgres:
        postgres.dsn                    # of a superuser, over TCP on a free port
        postgres.stop(), postgres.start(), postgres.kill()

The binaries come from the system's package `postgresql`; where they are missing and we are root they are installed.
PostgreSQL refuses to run as root, so as root the server runs as the user `postgres`.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

_HOMES = Path("/usr/lib/postgresql")
_SETTINGS = {
    "wal_level": "logical",
    "max_wal_senders": "10",
    "max_replication_slots": "10",
    "fsync": "off",  # speed: no test of ours cuts the power of this server
    "shared_buffers": "32MB",
    "listen_addresses": "'127.0.0.1'",
    "unix_socket_directories": "''",
    "log_min_messages": "warning",
    "wal_sender_timeout": "5s",
}


def binaries() -> Path:
    """The folder of `initdb` and `postgres`, installed from the system's packages if they are missing."""
    found = _found()
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        patient = ["apt-get", "-q", "-o", "DPkg::Lock::Timeout=240"]  # tests run side by side
        for what in (["update"], ["install", "-y", "--no-install-recommends", "postgresql"]):
            subprocess.run([*patient, *what], env=environment, check=False, capture_output=True, timeout=280)
        found = _found()
    if found is None:
        raise RuntimeError("these tests need PostgreSQL: install the package postgresql, or put initdb on the PATH")
    return found


def _found() -> Path | None:
    homes = sorted(_HOMES.glob("*/bin"), key=lambda path: float(path.parent.name), reverse=True)
    on_path = shutil.which("initdb")
    return homes[0] if homes else Path(on_path).resolve().parent if on_path else None


class Postgres:
    """A server with a fresh database cluster; it ends with the block, and so does its folder."""

    def __init__(self, folder: Path | None = None, **settings: str) -> None:
        self._bin = binaries()
        # below /tmp whatever the folder of the test: the user postgres must be able to reach it
        self._folder = Path(tempfile.mkdtemp(prefix="millstream-postgres-", dir=folder if os.geteuid() else None))
        self.port = _free_port()
        self.dsn = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"
        self._process: subprocess.Popen[bytes] | None = None
        if os.geteuid() == 0:
            user = pwd.getpwnam("postgres")
            os.chown(self._folder, user.pw_uid, user.pw_gid)
        data = self._folder / "data"
        self._run("initdb", "-D", str(data), "-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8")
        lines = [f"{name} = {value}" for name, value in {**_SETTINGS, "port": str(self.port), **settings}.items()]
        with open(data / "postgresql.conf", "a") as file:
            file.write("\n".join(lines) + "\n")

    def start(self) -> None:
        """Start the server and wait until it answers."""
        self._process = subprocess.Popen(
            [str(self._bin / "postgres"), "-D", str(self._folder / "data")],
            stdout=subprocess.DEVNULL,
            stderr=open(self._folder / "log", "ab"),  # noqa: SIM115 - the server's own
            preexec_fn=_become_postgres(),
        )
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            ready = subprocess.run(
                [str(self._bin / "pg_isready"), "-h", "127.0.0.1", "-p", str(self.port)], capture_output=True
            )
            if ready.returncode == 0:
                return
            time.sleep(0.05)
        raise RuntimeError(f"PostgreSQL did not start:\n{(self._folder / 'log').read_text()[-2000:]}")

    def stop(self) -> None:
        """Stop the server in an orderly way, if it runs; connections are ended."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """End the server as a crash would: it recovers from its log at the next start."""
        self._end(signal.SIGQUIT)

    def _end(self, sign: signal.Signals) -> None:
        if self._process is not None:
            if self._process.poll() is None:
                self._process.send_signal(sign)
                self._process.wait(30)
            self._process = None

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._bin / program), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, preexec_fn=_become_postgres(), cwd="/")
        if done.returncode:
            raise RuntimeError(f"{program} failed: {done.stderr}")

    def __enter__(self) -> Postgres:
        self.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)


def _become_postgres() -> Callable[[], None] | None:
    if os.geteuid() != 0:
        return None
    user = pwd.getpwnam("postgres")

    def become() -> None:
        os.setgid(user.pw_gid)
        os.setuid(user.pw_uid)

    return become


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
