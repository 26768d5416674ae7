"""FLamby's survival times of 1,088 breast cancer patients in six regions, from files that the user
fetches.
"""

from __future__ import annotations

import torch

from fedloom.data.client_indices import Partition
from fedloom.data.dataset import Arrays, Samples
from fedloom.data.federated import FederatedData
from fedloom.data.own.columns import Table, numbers_of, present
from fedloom.data.own.reading import Reading
from fedloom.data.partition.without_labels import natural
from fedloom.data.published.download import CATALOGUE, DataDir, data_root, fetch_set
from fedloom.data.raw_inputs import Columns

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
