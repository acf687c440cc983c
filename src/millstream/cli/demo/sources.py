"""The sources of the shop as programs: the legacy order application with its hook, and a till that writes CSV.

    python -m millstream.cli.demo.sources legacy FOLDER RATES --share 0.25 --products 1000000

Both take as many orders per second as the file RATES says, times their share, until it says `closed`. Killed and
started again, they go on in the files that they have.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv

from millstream.workloads import Scatter, Zipf

EXAMPLES = Path(__file__).parents[4] / "examples"
FLOW = EXAMPLES / "shop.yaml"
APPLICATION = EXAMPLES / "legacy_orders"
CLOSED = "closed"
COLUMNS = ("order_id", "customer", "product_id", "quantity", "amount", "minutes")
RECORD_BYTES = 36  # of the legacy application's file: three numbers of 8 bytes, three of 4

_TICK = 0.05
_CUSTOMERS = 50_000
_STEP = 2  # from one product number of the master to the next
_TILL_ORDERS = 1_000_000_000  # order numbers of the till begin here
_UNKNOWN, _NOBODY, _NOTHING, _UNREADABLE = 0.01, 0.004, 0.004, 0.002  # shares of the orders with each defect


class Customers:
    """What customers want: few products most of the time, and one in a hundred that the shop no longer has."""

    def __init__(self, products: int) -> None:
        self.rng = np.random.default_rng()
        self._zipf, self._places = Zipf(products, 1.0), Scatter(products)

    def orders(self, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Customer, product, quantity and price of so many orders."""
        product = self._places.forward(self._zipf.sample(self.rng, count) - 1) * _STEP
        product[self.rng.random(count) < _UNKNOWN] += 1
        customer = self.rng.integers(0, _CUSTOMERS, count)
        return customer, product, self.rng.integers(1, 10, count), 199 + product % 5_000


def keep_rate(rates: Path, share: float, take: Callable[[int], None]) -> None:
    """Call `take` with the number of orders that are due, twenty times a second, until the shop is closed."""
    last, due = time.monotonic(), 0.0
    while (told := rates.read_text()) != CLOSED:
        now = time.monotonic()
        rate = float(told) * share
        due, last = min(due + rate * (now - last), max(1.0, rate)), now
        if due >= 1:
            take(int(due))
            due -= int(due)
        time.sleep(_TICK)


def legacy(folder: Path, rates: Path, *, share: float, products: int) -> None:
    """The application of examples/legacy_orders, hooked; its capture.ini is in the folder."""
    os.environ["CAPTURE_INI"] = str(folder / "capture.ini")
    sys.path.insert(0, str(APPLICATION))
    importlib.import_module("capture")
    till = importlib.import_module("orders").Till(folder)
    customers = Customers(products)

    def take(count: int) -> None:
        for order in zip(*(values.tolist() for values in customers.orders(count)), strict=True):
            till.order(*order)

    try:
        keep_rate(rates, share, take)
    finally:
        till.close()


def till(folder: Path, rates: Path, *, share: float, products: int) -> None:
    """A till that appends a line of CSV for each order; some lines have defects."""
    customers, opened = Customers(products), time.monotonic()
    with open(folder / "till.csv", "a+b", buffering=0) as file:
        file.seek(0)
        known = file.read()
        file.truncate(known.rfind(b"\n") + 1)  # a line that a killed run has not finished was never an order
        lines = known.count(b"\n")
        if not lines:
            file.write((",".join(COLUMNS) + "\n").encode())
            lines = 1

        def take(count: int) -> None:
            nonlocal lines
            file.write(_csv(customers, _TILL_ORDERS + lines, count, int((time.monotonic() - opened) / 60)))
            lines += count

        keep_rate(rates, share, take)


def _csv(customers: Customers, first: int, count: int, minutes: int) -> bytes:
    customer, product, quantity, price = customers.orders(count)
    nobody, nothing, unreadable = (customers.rng.random(count) < one for one in (_NOBODY, _NOTHING, _UNREADABLE))
    quantity[nothing] = 0
    amount = (quantity * price).astype(str)
    amount[unreadable] = "?"
    columns = [
        pa.array(np.arange(first, first + count)),
        pa.array(customer, mask=nobody),
        pa.array(product),
        pa.array(quantity),
        pa.array(amount),
        pa.repeat(minutes, count),
    ]
    written = pa.BufferOutputStream()
    options = csv.WriteOptions(include_header=False, quoting_style="none")
    csv.write_csv(pa.RecordBatch.from_arrays(columns, names=COLUMNS), written, options)
    return written.getvalue().to_pybytes()


def main() -> None:
    """One of the two, as the first argument says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", choices=("legacy", "till"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("rates", type=Path)
    parser.add_argument("--share", type=float, required=True)
    parser.add_argument("--products", type=int, required=True)
    told = parser.parse_args()
    program = legacy if told.source == "legacy" else till
    program(told.folder, told.rates, share=told.share, products=told.products)


if __name__ == "__main__":
    main()
