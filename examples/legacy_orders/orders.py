"""The legacy application: takes orders at a till and keeps them in a keyed record file. It knows nothing of warehouses.

python orders.py /tmp/shop --orders 20000
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path

import isam

# order number, customer, product, quantity, price in cents, minutes since opening
LAYOUT = "<qqqiii"
KEYS = (0, 1)  # the order number, which is unique, and the customer


class Till:
    """Takes orders; each is checked, priced and written before the next."""

    def __init__(self, folder: Path, *, seed: int = 7) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = isam.open(folder / "orders", LAYOUT, KEYS)
        self._next = len(self._file) + 1
        self._random = random.Random(seed)
        self._opened = time.monotonic()

    def take(self) -> int:
        """One order, as customers come; its number."""
        customer = int(self._random.random() * 50_000)
        product = int(self._random.random() * 1_000_000)
        quantity = 1 + int(self._random.random() * 9)
        return self.order(customer, product, quantity, 199 + product % 5_000)

    def order(self, customer: int, product: int, quantity: int, price: int) -> int:
        """Check an order and write it."""
        if quantity <= 0 or price < 0:
            raise ValueError(f"no order of {quantity} at {price}")
        number = self._next
        minutes = int((time.monotonic() - self._opened) / 60)
        self._file.write((number, customer, product, quantity, price * quantity, minutes))
        self._next = number + 1
        return number

    def close(self) -> None:
        self._file.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--orders", type=int, default=1_000)
    parser.add_argument("--rate", type=float, default=0.0, help="orders per second (default: as fast as it goes)")
    arguments = parser.parse_args()
    till = Till(arguments.folder)
    begun = time.monotonic()
    for number in range(arguments.orders):
        till.take()
        if arguments.rate:
            time.sleep(max(0.0, begun + (number + 1) / arguments.rate - time.monotonic()))
    till.close()
    print(f"{arguments.orders / (time.monotonic() - begun):,.0f} orders/s")


if __name__ == "__main__":
    main()
