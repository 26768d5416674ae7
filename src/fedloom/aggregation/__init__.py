"""What becomes of a round's client updates: the mean, robust rules, private sums. base.py has the
interface.
"""

from __future__ import annotations

from collections.abc import Callable

from ..core.registry import Registry
from .base import Aggregated, Aggregation, Gives, Mean, NoiseFrom, Reads
from .centred_clipping import CentredClipping
from .discrete_gaussian import DiscreteGaussian
from .geometric_median import GeometricMedian
from .integer_ring import IntegerRing
from .krum import Krum
from .median import Median
from .norm_bound import NormBound
from .privacy import DifferentialPrivacy
from .rows import FromRows, Gather
from .trimmed_mean import TrimmedMean

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
