"""What a step costs: the target's forward by its number of rows, the proposer by how far ahead it drafts.

The first is measured at start-up, both are followed while the engine runs. Times on a shared machine are noisy, and
upwards only: now and then a step takes five times as long because something else ran. So one observation moves an
estimate by a bounded amount, and most of what it says is taken to be about the machine's speed at that moment, which
every length shares, not about the shape of the curve, which decides the length.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from itertools import accumulate

_NOISE = 0.1**2  # variance of the logarithm of a step's time around the curve
_SPEED_DRIFT = 0.02**2  # what the machine's speed may change in a step
_SPEED_VARIANCE = 0.3**2  # of what was measured at start-up, to begin with
_SHAPE_VARIANCE = 0.05**2  # likewise, of one knot
_SHAPE_DRIFT = 1e-5
_MOST_SPEED = (
    0.3  # what one observation may say about either: of the shape, a step that took too long says little
)
_MOST_SHAPE, _LEAST_SHAPE = 0.1, -0.5
_REACH = 4  # so many knots on either side follow a knot,
_FOLLOWS = 0.6  # each by this share of what the one before it does
_MOST_DENSE = 17

_NUM_FIRST_CALLS = 8
_MOST_FACTOR = 3.0  # a call that took longer than this times the estimate counts as one that took just this
_KEEP_CALL = 0.97
_CALL_RIDGE = (
    0.02  # too little to matter once lengths have differed, enough to settle what cannot be told apart
)


class VerifyCost:
    """Seconds of a forward of the target that decides tokens in all its rows.

    A curve through knots, `speed * shape`: straight between the knots, and beyond the last as steep as before it.

    Args:
        measured: seconds by number of rows; not empty.
    """

    def __init__(self, measured: Mapping[int, float]) -> None:
        rows = sorted(measured)
        # Interference only ever adds time: what more rows took is enough for fewer.
        falling = accumulate((measured[n] for n in reversed(rows)), min)
        self._rows, self._shape = rows, [*falling][::-1]
        self._speed = 1.0
        # Few rows are common, and their costs go up in steps: a knot at each.
        dense = sorted({*range(rows[0], min(rows[-1], _MOST_DENSE)), *rows})
        self._rows, self._shape = dense, [self.seconds(num_rows) for num_rows in dense]
        self._speed_variance = _SPEED_VARIANCE
        self._shape_variances = [_SHAPE_VARIANCE] * len(self._rows)

    def seconds(self, num_rows: int) -> float:
        """For a number of rows."""
        left, right, share = self._around(num_rows)
        return self._speed * (self._shape[left] + share * (self._shape[right] - self._shape[left]))

    def observe(self, num_rows: int, seconds: float) -> None:
        """Learn from a step."""
        expected = self.seconds(num_rows)
        if seconds <= 0 or expected <= 0:
            return
        surprise = math.log(seconds / expected)
        left, right, share = self._around(num_rows)
        nearest = left if share < 0.5 else right
        self._speed_variance += _SPEED_DRIFT
        total = self._speed_variance + self._shape_variances[nearest] + _NOISE
        speed_gain = self._speed_variance / total
        shape_gain = self._shape_variances[nearest] / total
        most = max(_MOST_SPEED, 3 * math.sqrt(self._speed_variance))
        faster = speed_gain * min(max(surprise, -most), most)
        bent = shape_gain * min(max(surprise, _LEAST_SHAPE), _MOST_SHAPE)
        self._speed_variance *= 1 - speed_gain
        self._shape_variances[nearest] *= 1 - shape_gain
        self._shape_variances[nearest] += _SHAPE_DRIFT
        self._speed *= math.exp(faster)
        for knot in range(max(nearest - _REACH, 0), min(nearest + _REACH + 1, len(self._shape))):
            self._shape[knot] *= math.exp(bent * _FOLLOWS ** abs(knot - nearest))

    def _around(self, num_rows: int) -> tuple[int, int, float]:
        """Two knots, and where between them (or beyond them) a number of rows lies, from 0 to 1 (or above)."""
        last = len(self._rows) - 1
        right = min(bisect_left(self._rows, num_rows), last)
        if right == 0 or self._rows[right] == num_rows:
            return right, right, 0.0
        left = right - 1
        return left, right, (num_rows - self._rows[left]) / (self._rows[right] - self._rows[left])


class DraftCost:
    """Seconds of a call of the proposer: a part per call, and a part per token that it drafts for one request.

    Both by least squares with forgetting; what cannot be told apart yet counts as the second.
    """

    def __init__(self) -> None:
        self._num_calls = 0
        # Sums over the calls, the newest weighing most.
        self._n = self._x = self._xx = self._y = self._xy = 0.0
        self.per_call = 0.0
        self.per_token = 0.0

    @property
    def is_settled(self) -> bool:
        """Whether nothing that calls do only at first can be in an observation."""
        return self._num_calls > _NUM_FIRST_CALLS

    def seconds(self, length: int) -> float:
        """Of a call whose longest draft has `length` tokens."""
        return self.per_call + self.per_token * length

    def observe(self, length: int, seconds: float) -> None:
        """Learn from a call whose longest budget was `length`."""
        expected = self.seconds(length)
        if self.is_settled:
            seconds = min(seconds, _MOST_FACTOR * expected)
        elif seconds * _MOST_FACTOR < expected:
            # What came before was compilation, or a cold cache.
            self._n = self._x = self._xx = self._y = self._xy = 0.0
        self._num_calls += 1
        self._n = self._n * _KEEP_CALL + 1
        self._x = self._x * _KEEP_CALL + length
        self._xx = self._xx * _KEEP_CALL + length * length
        self._y = self._y * _KEEP_CALL + seconds
        self._xy = self._xy * _KEEP_CALL + length * seconds
        n = self._n + _CALL_RIDGE
        determinant = n * self._xx - self._x * self._x
        if determinant <= 0:
            self.per_call, self.per_token = self._y / n, 0.0
            return
        per_call = (self._xx * self._y - self._x * self._xy) / determinant
        self.per_call = min(max(per_call, 0.0), self._y / n)
        self.per_token = max((self._xy - self._x * self.per_call) / self._xx, 0.0)
