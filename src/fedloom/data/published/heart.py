"""FLamby's tables: the patients of four hospitals, which come with fedloom, and survival times of
breast cancer patients in six regions, from files that the user fetches.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from fedloom.data.client_indices import Partition
from fedloom.data.dataset import Arrays, Samples
from fedloom.data.federated import FederatedData
from fedloom.data.own.columns import Table, numbers_of, present
from fedloom.data.own.reading import Reading
from fedloom.data.own.tables import files_with
from fedloom.data.partition.without_labels import natural
from fedloom.data.published.download import CATALOGUE, DataDir, data_root, fetch_set
from fedloom.data.raw_inputs import Columns

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


REGIONS = ("Northeast", "South", "West", "Midwest", "Europe", "Canada")  # FLamby's 0 to 5


def tcga(
    partition: Partition | None = None, seed: int = 0, data_dir: DataDir = None
) -> FederatedData:
    """Load TCGA-BRCA, survival of 1,088 patients, from <root>/tcga-brca: brca.csv and
    train_test_split.csv, which you fetch from FLamby and whose terms (the GDC's) you accept.

    Inputs are (n, 39) float32 as they are, without a scale: the age in years and 38 columns of 0
    and 1. Targets are (n, 2) float32: T, days of observation, and E, 1 if the patient died then
    and 0 if nobody knows later times (censored). The default partition is natural, six regions
    with their own test rows (866 and 222 in all). Raises DataError for a file that is missing or
    altered.

    Source: Liu et al., Cell 2018; prepared and divided as in du Terrail et al., FLamby, NeurIPS
    2022.
    """
    files = fetch_set(CATALOGUE["tcga"], data_root(data_dir), download=False)
    patients, folds = map(Reading().table, files)
    fold = dict(zip(present(folds, "pid"), present(folds, "fold2"), strict=True))
    assigned = patients.of("pid").map(fold)
    table = Table(patients.where, patients.frame[assigned.notna()])
    assignments = assigned[assigned.notna()].str.split("_")
    owners = torch.tensor([int(parts[1]) for parts in assignments])
    test = torch.tensor([parts[0] == "test" for parts in assignments])
    names = [name for name in table.columns if name not in ("pid", "E", "T")]
    samples = Samples(numbers_of(table, names), numbers_of(table, ["T", "E"]), owners)
    train, tests = samples.split(test)
    arrays = Arrays(
        name="tcga",
        train=train,
        test=tests,
        by="regions",
        owner_names=REGIONS,
        raw=Columns(tuple(names)),
        details={"target": ["T", "E"]},
    )
    return arrays.divided(natural() if partition is None else partition, seed)
