"""The ledger of bytes: what each component of an operator holds, and that the sum never passes the budget."""

from __future__ import annotations

from ..errors import BudgetTooSmall
from ..units import format_bytes


class Ledger:
    """Books bytes by component. Invariant: `used <= budget`, always; `peak` is the most that was ever booked."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.components: dict[str, int] = {}
        self.used = 0
        self.peak = 0

    def book(self, component: str, size: int) -> None:
        """Set what a component holds; refused when that would pass the budget."""
        used = self.used - self.components.get(component, 0) + size
        if used > self.budget:
            raise BudgetTooSmall(
                f"memory of {format_bytes(self.budget)} is too small: {component} needs {format_bytes(size)} and the "
                f"other parts hold {format_bytes(used - size)}; give at least {format_bytes(used)} ({used} bytes)",
                least=used,
            )
        self.components[component] = size
        self.used = used
        self.peak = max(self.peak, used)

    def add(self, component: str, size: int) -> None:
        """Book `size` bytes more (or less, if negative) for a component."""
        self.book(component, self.components.get(component, 0) + size)

    @property
    def free(self) -> int:
        return self.budget - self.used
