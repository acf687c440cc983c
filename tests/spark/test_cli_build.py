"""`millstream master build`, as a person runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from millstream.master import Master

SALES = "product_id,sku,sold\n1,001,5\n2,002,60\n2,003,7\n"


def millstream(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own."""
    command = [sys.executable, "-c", "import sys; from millstream.cli import main; sys.exit(main())", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "products.csv"
    path.write_text(SALES)
    return path


def test_build_from_csv(source: Path, tmp_path: Path) -> None:
    path = tmp_path / "products"
    schema = "product_id BIGINT, sku STRING, sold INT"
    options = ["--schema", schema, "--layout", "frequency", "--frequency", "sold", "--segment-bytes", "4KiB"]
    done = millstream("master", "build", str(source), str(path), "--key", "product_id,sku", *options)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{path}: version 1, 3 rows, ")
    built = Master.open(path)
    assert (built.rows, built.key, built.layout) == (3, ["product_id", "sku"], "frequency")
    assert str(built.schema.field("sku").type) == "string"


def test_a_line_that_does_not_fit_the_schema(source: Path, tmp_path: Path) -> None:
    source.write_text(SALES + "three,004,1\n")
    path = tmp_path / "products"
    schema = "product_id BIGINT, sku STRING, sold INT"
    done = millstream("master", "build", str(source), str(path), "--key", "product_id", "--schema", schema)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith(f"millstream: cannot build a master from {source}: ")
    assert millstream("master", "show", str(path)).returncode == 1
