"""The examples of the documents run: each page's Python blocks in order, in a directory of its own.

A `text` block right after a Python block is what that block prints (`...` stands for anything). A block behind the
comment `<!-- not run -->` is for reading only. All links between the pages lead somewhere. One page is for the shell:
its `sh` blocks run in one shell, at other ports.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [
    DOCS / "tutorial.md",
    *sorted((DOCS / "how-to").glob("*.md")),
    DOCS / "master-format.md",
    DOCS / "flow-reference.md",
]
BLOCK = re.compile(
    r"(<!-- not run -->\n)?^```python\n(.*?)^```\n(?:\n?^```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL
)
SHELL = re.compile(r"^```sh\n(.*?)^```\n(?:\n?^```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]*)?\)")
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LOOSELY = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def examples(page: Path) -> Iterator[tuple[int, str, str | None]]:
    """Line, code and expected output of each block that runs."""
    text = page.read_text()
    for found in BLOCK.finditer(text):
        if found[1] is None:
            yield text.count("\n", 0, found.start(2)) + 1, found[2], found[3]


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> None:
    """One small Spark session, which the examples then find when they ask for theirs."""
    from millstream.spark import local_session, workers

    workers.POOLS = 2  # starting Python workers takes most of the time here
    settings = {"spark.sql.shuffle.partitions": 2, "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse"))}
    local_session("millstream-docs", **settings)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_examples_run(page: Path, session: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "example"}
    checker = doctest.OutputChecker()
    for line, code, expected in examples(page):
        out = io.StringIO()
        source = compile("\n" * (line - 1) + code, str(page), "exec")  # so that a traceback names the line of the page
        with contextlib.redirect_stdout(out):
            exec(source, names)
        if expected is not None:
            assert checker.check_output(expected, out.getvalue(), LOOSELY), f"{page}:{line} prints\n{out.getvalue()}"


@pytest.mark.slow
def test_from_nothing_to_a_fresh_table(tmp_path: Path) -> None:
    blocks = SHELL.findall((DOCS / "fresh-table.md").read_text())
    assert len(blocks) > 5
    between = "=== next ==="
    script = "set -e\n" + "".join(f"{code}echo '{between}'\n" for code, _ in blocks)
    with socket.socket() as one, socket.socket() as other:
        for port, probe in (("7411", one), ("7421", other)):
            probe.bind(("127.0.0.1", 0))
            script = script.replace(port, str(probe.getsockname()[1]))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    shell = subprocess.Popen(
        ["bash", "-c", script], cwd=tmp_path, env={**os.environ, "PATH": path}, stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        out, _ = shell.communicate(timeout=240)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
    logs = "\n".join(f"{log.name}: {log.read_text()}" for log in tmp_path.glob("*.log"))
    assert shell.returncode == 0, f"{out}\n{logs}"
    checker = doctest.OutputChecker()
    for (code, expected), printed in zip(blocks, out.split(f"{between}\n"), strict=False):
        if expected:
            assert checker.check_output(expected, printed, LOOSELY), f"{code} prints\n{printed}\n{logs}"


def test_there_are_examples() -> None:
    assert sum(len(list(examples(page))) for page in PAGES) > 20


@pytest.mark.parametrize("page", [DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md"))], ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    targets = {target for target, _ in LINK.findall(FENCED.sub("", page.read_text())) if "://" not in target}
    images = {target for target in targets if target.endswith(".png")}  # made by the benchmark
    missing = sorted(target for target in targets - images if not (page.parent / target).exists())
    assert not missing
