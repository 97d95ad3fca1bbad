"""Statistics over paired seeds."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtrit


def interval(differences: ArrayLike) -> tuple[float, float]:
    """95% confidence interval of the mean (Student's t); infinite for a single value."""
    d = np.asarray(differences, dtype=np.float64)
    if d.size < 2:
        return (-np.inf, np.inf)
    half = float(stdtrit(d.size - 1, 0.975)) * float(d.std(ddof=1)) / np.sqrt(d.size)
    return (float(d.mean()) - half, float(d.mean()) + half)
