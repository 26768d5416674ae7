"""What becomes of a round's client updates: the mean, robust rules, private sums. base.py has the
interface.
"""

from __future__ import annotations

from collections.abc import Callable

from ..core.registry import Registry
from .base import Aggregated, Aggregation, Gives, Mean, NoiseFrom, Reads
from .discrete_gaussian import DiscreteGaussian
from .integer_ring import IntegerRing
from .norm_bound import NormBound
from .privacy import DifferentialPrivacy
from .rows import CentredClipping, FromRows, Gather, GeometricMedian, Krum, Median, TrimmedMean

AGGREGATIONS: Registry[Callable[..., Aggregation]] = Registry(
    "aggregation",
    {
        "mean": Mean,
        "median": Median,
        "trimmed_mean": TrimmedMean,
        "krum": Krum,
        "geometric_median": GeometricMedian,
        "centred_clipping": CentredClipping,
        "norm_bound": NormBound,
        "dp": DifferentialPrivacy,
        "integer_ring": IntegerRing,
        "discrete_gaussian": DiscreteGaussian,
    },
    own=Aggregation,
)

__all__ = [
    "AGGREGATIONS",
    "Aggregated",
    "Aggregation",
    "CentredClipping",
    "DifferentialPrivacy",
    "DiscreteGaussian",
    "FromRows",
    "Gather",
    "GeometricMedian",
    "Gives",
    "IntegerRing",
    "Krum",
    "Mean",
    "Median",
    "NoiseFrom",
    "NormBound",
    "Reads",
    "TrimmedMean",
]
