"""What a search has learnt of its own moves: how often each kind has paid, by instruction and action."""

from __future__ import annotations

import numpy as np

#: wins and tries that every action begins with, so that none is ruled out by its first failures
_WINS, _TRIES = 1.0, 10.0


class Experience:
    """How often moves paid: a rate for each thing (an instruction, for example) and action.

    Few moves are tried twice, so a rate leans on what is known of the thing under other actions and of the
    action on other things: the guess is (rate of the action) x (rate of the thing) / (rate of all), and
    counts as `lean` tries of its own. What happened long ago counts less, since the schedule has changed.

    Args:
        things, actions: how many there are.
        keep: what the past is multiplied by with each new try, 0 to 1.
        lean: tries that a guess counts as.
    """

    def __init__(self, things: int, actions: int, keep: float = 0.995, lean: float = 2.0) -> None:
        self.keep, self.lean = keep, lean
        self.tries, self.wins = np.zeros((things, actions)), np.zeros((things, actions))

    def learn(self, thing: int, action: int, won: bool) -> None:
        """A move was evaluated; `won`: it made the kernel faster."""
        self.tries *= self.keep
        self.wins *= self.keep
        self.tries[thing, action] += 1.0
        self.wins[thing, action] += won

    def rates(self) -> np.ndarray:
        """float64 (things, actions), above 0: the share of moves expected to pay."""
        tries, wins, lean = self.tries, self.wins, self.lean
        every = (wins.sum() + _WINS) / (tries.sum() + _TRIES)
        action = (wins.sum(axis=0) + _WINS) / (tries.sum(axis=0) + _TRIES)
        thing = (wins.sum(axis=1) + lean * every) / (tries.sum(axis=1) + lean)
        guess = np.outer(thing, action) / every
        found: np.ndarray = (wins + lean * guess) / (tries + lean)
        return found
