"""What a step costs: the target's forward by its number of rows, the proposer by how far ahead it drafts.

Measured at start-up where possible, then followed while the engine runs. Times on a shared machine are noisy, and
upwards only: now and then a step takes five times as long because something else ran. So one observation moves an
estimate by a bounded amount, and most of what it says is taken to be about the machine's speed at that moment, which
every length shares, not about the shape of the curve, which decides the length.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

_NOISE = 0.1**2  # variance of the logarithm of a step's time around the curve
_SPEED_DRIFT = 0.02**2  # what the machine's speed may change in a step
_SHAPE_VARIANCE = 0.05**2  # of a knot measured at start-up, to begin with
_SHAPE_DRIFT = 1e-5
_MOST_SPEED, _MOST_SHAPE = 0.3, 0.1  # of what one observation may say about either
_REACH = np.array([1.0, 0.6, 0.36, 0.2, 0.1])  # how much the knots beside it follow a knot

_NUM_FIRST_CALLS = 8
_MOST_FACTOR = 3.0  # a call that took longer than this times the estimate counts as one that took just this
_KEEP_CALL = 0.97
_CALL_RIDGE = (
    0.02  # too little to matter once lengths have differed, enough to settle what cannot be told apart
)

UNMEASURED: Mapping[int, float] = {1: 1.0, 2: 1.05, 4: 1.15, 8: 1.4, 16: 2.0, 32: 3.4, 64: 6.2}
"""A shape for engines that measured nothing at start-up; the first steps tell the scale."""


class VerifyCost:
    """Seconds of a forward of the target that decides tokens in all its rows.

    A curve through knots, `speed * shape`: straight between the knots, and beyond the last as steep as before it.

    Args:
        measured: seconds by number of rows; not empty.
    """

    def __init__(self, measured: Mapping[int, float] = UNMEASURED) -> None:
        self._rows = np.array(sorted(measured), np.float64)
        seconds = np.array([measured[int(n)] for n in self._rows])
        # Interference only ever adds time: what more rows took is enough for fewer.
        self._seconds = np.minimum.accumulate(seconds[::-1])[::-1].copy()
        self._speed_variance = 0.0 if measured is not UNMEASURED else 25.0
        self._shape_variance = np.full(len(self._rows), _SHAPE_VARIANCE)

    def curve(self, first: int, last: int) -> list[float]:
        """Seconds for `first`, `first + 1`, ..., `last` rows."""
        rows = np.arange(first, last + 1, dtype=np.float64)
        seconds = np.interp(rows, self._rows, self._seconds)
        beyond = rows - self._rows[-1]
        if beyond[-1] > 0:
            seconds += np.maximum(beyond, 0) * self._last_slope()
        result: list[float] = seconds.tolist()
        return result

    def observe(self, num_rows: int, seconds: float) -> None:
        """Learn from a step."""
        if seconds <= 0:
            return
        knots, weights = self._knots_around(num_rows)
        variance = float(self._shape_variance[knots] @ weights)
        self._speed_variance += _SPEED_DRIFT
        total = self._speed_variance + variance + _NOISE
        surprise = math.log(seconds / self.curve(num_rows, num_rows)[0])
        most = max(_MOST_SPEED, 3 * math.sqrt(self._speed_variance))
        speed_gain = self._speed_variance / total
        self._seconds *= math.exp(speed_gain * min(max(surprise, -most), most))
        self._speed_variance *= 1 - speed_gain
        bounded = min(max(surprise, -_MOST_SHAPE), _MOST_SHAPE)
        for knot, weight in zip(knots, weights, strict=True):
            gain = float(weight * self._shape_variance[knot] / total)
            self._shape_variance[knot] *= 1 - gain
            self._shape_variance[knot] += _SHAPE_DRIFT
            self._bend(int(knot), gain * bounded)

    def _bend(self, knot: int, change: float) -> None:
        for distance, share in enumerate(_REACH):
            for index in {knot - distance, knot + distance}:
                if 0 <= index < len(self._seconds):
                    self._seconds[index] *= math.exp(change * share)

    def _knots_around(self, num_rows: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float64]]:
        right = int(np.searchsorted(self._rows, num_rows))
        if right == len(self._rows) or self._rows[right] == num_rows or right == 0:
            return np.array([min(right, len(self._rows) - 1)]), np.ones(1)
        left, span = right - 1, self._rows[right] - self._rows[right - 1]
        share = (num_rows - self._rows[left]) / span
        return np.array([left, right]), np.array([1 - share, share])

    def _last_slope(self) -> float:
        if len(self._rows) == 1:
            return float(self._seconds[0] / self._rows[0])
        return max(0.0, float((self._seconds[-1] - self._seconds[-2]) / (self._rows[-1] - self._rows[-2])))


class DraftCost:
    """Seconds of a call of the proposer: a part per call, and a part per token that it drafts for one request.

    Both by least squares with forgetting; what cannot be told apart yet counts as the second.
    """

    def __init__(self) -> None:
        self._num_calls = 0
        # Sums over calls, the newest weighing most: 1, length, length^2, seconds, length * seconds.
        self._sums = np.zeros(5)
        self.per_call = 0.0
        self.per_token = 0.0

    def seconds(self, length: int) -> float:
        """Of a call whose longest draft has `length` tokens."""
        return self.per_call + self.per_token * length

    def observe(self, length: int, seconds: float) -> None:
        """Learn from a call whose longest budget was `length`."""
        expected = self.seconds(length)
        if self._num_calls > _NUM_FIRST_CALLS:
            seconds = min(seconds, _MOST_FACTOR * expected)
        elif seconds * _MOST_FACTOR < expected:
            self._sums[:] = 0  # what came before it was compilation or a cold cache
        self._num_calls += 1
        self._sums *= _KEEP_CALL
        self._sums += (1, length, length * length, seconds, length * seconds)
        n, x, xx, y, xy = self._sums.tolist()
        n += _CALL_RIDGE
        determinant = n * xx - x * x
        if determinant <= 0:
            self.per_call, self.per_token = y / n, 0.0
            return
        self.per_call = min(max((xx * y - x * xy) / determinant, 0.0), y / n)
        self.per_token = max((xy - x * self.per_call) / xx, 0.0)
