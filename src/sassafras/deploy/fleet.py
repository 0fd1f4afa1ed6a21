"""Before tuned kernels go to many machines: is everything in a store fit to be used?"""

from __future__ import annotations

from dataclasses import dataclass

from sassafras.core import StoreError
from sassafras.store import Store, Winner

from .check import LaunchFacts, refusal, revalidate


@dataclass(frozen=True, slots=True)
class Checked:
    """One winner, and why deployment would not use it (None where it would)."""

    winner: Winner
    problem: str | None


def check(store: Store) -> list[Checked]:
    """Do for every winner, local or imported, what deployment does before it uses one: figures, launch facts,
    the code's own facts, and the validator's proof.

    Raises:
        StoreError: the store cannot be read.
    """
    found = []
    for winner in store.winners():
        try:
            original = store.cubin(winner.original)
        except StoreError as error:
            found.append(Checked(winner, str(error)))
            continue
        problem = refusal(winner, original, LaunchFacts(name=winner.kernel.name)) or revalidate(
            winner, original
        )
        found.append(Checked(winner, problem))
    return found
