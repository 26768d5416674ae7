"""The patients of four hospitals, which come with fedloom: a table with published settings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fedloom.data.client_indices import Partition
from fedloom.data.federated import FederatedData
from fedloom.data.own.tables import files_with
from fedloom.data.partition.without_labels import natural

FOLDER = Path(__file__).parent / "heart_disease"
COLUMNS = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak"),
    *("slope", "ca", "thal", "num"),
)
# without slope, ca and thal, which most rows lack; cp and restecg are codes
INPUTS = ("age", "sex", "trestbps", "chol", "fbs", "thalach", "exang", "oldpeak", "cp", "restecg")
SETTINGS = {  # of `table`
    "names": COLUMNS,
    "na_values": ("?",),
    "target": "num > 0",
    "inputs": INPUTS,
    "columns": {"cp": "dummy", "restecg": "dummy"},
    "missing": "drop",
    "standardise": "with_categories",
    "ddof": 1,
}


def heart_files() -> list[Path]:
    """The file of each hospital, as it is published."""
    return [FOLDER / f"{name}.data" for name in ("cleveland", "hungarian", "switzerland", "va")]


def heart(
    partition: Partition | None = None,
    seed: int = 0,
    per_client: bool = True,
    test_share: float = 0.34,
    test_seed: int = 43,
) -> FederatedData:
    """Load the patients of four hospitals who may have a heart disease: no download.

    Inputs are (n, 13) float32 as FLamby prepares them: rows with an empty cell are left out (740 of
    920 stay), cp and restecg have an input for each code but the first, and all inputs are less
    their mean, divided by their deviation (n - 1) in a hospital's own training rows; per_client =
    false: in those of all (FLamby's pooled set, also its test rows). The default partition is
    natural, the hospitals cleveland, hungarian, switzerland, va, with 34 % of each one's rows as
    its test rows; another partition ignores who has a row, and takes the scale of all. Targets: 1,
    ill, where num > 0. A cholesterol of 0 is an unknown one and stays. In Switzerland all training
    rows are ill. Needs pandas and scikit-learn.

    Source: Janosi, Steinbrunn, Pfisterer, Detrano, UCI repository, 1988, CC BY 4.0; prepared as in
    du Terrail et al., FLamby, NeurIPS 2022.
    """
    by_hospital = per_client and (partition is None or isinstance(partition, natural))
    options = SETTINGS | {"test_share": test_share, "test_seed": test_seed}
    files = files_with(options | {"per_client": by_hospital, "path": heart_files()})
    data = files.data(partition, seed, ("healthy", "ill"))
    return replace(data, name="heart", about={**data.about, "source": "heart"})
