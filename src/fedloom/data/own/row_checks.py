"""What is wrong or strange with the rows of a client: a patient twice, one class."""

from __future__ import annotations

import logging

from fedloom.data.federated import FederatedData
from fedloom.data.own.cells import name_of
from fedloom.data.own.columns import Table, present, short
from fedloom.errors import DataError

_log = logging.getLogger(__name__)


def refuse_twice(table: Table, patient: str, client: str | None) -> None:
    """Raise DataError if somebody of a column of patients has two rows at one client, naming both.

    Whether somebody is at two clients is not looked for: it would need all names in one place.
    """
    cells = present(table, patient)
    names = cells.map(name_of)
    owners = table.of(client) if client in table.columns else names.map(lambda _: "")
    keys = list(zip(owners, names, strict=True))
    first: dict[tuple[str, str], int] = {}
    for i, key in enumerate(keys):
        if (before := first.setdefault(key, i)) != i:
            (file, row), (other, earlier) = cells.index[i], cells.index[before]
            prefix = "" if other == file else f"{other}, "
            raise DataError(
                f"{file}, column '{patient}', row {row + 1}: {short(key[1])} is in {prefix}row "
                f"{earlier + 1} too, so a patient would count twice, or be in training and test; "
                "take one row out, or leave patient out if rows are visits"
            )


def warn_of_one_class(data: FederatedData) -> None:
    """Say which clients that the table itself has have training rows of one class alone."""
    several = max(data.classes or 0, len(data.class_names)) > 1 and data.targets.ndim == 1
    if not several or not (data.client_names or data.population == 1) or data.population > 1000:
        return
    single = ((data.label_counts() > 0).sum(1) == 1).nonzero().flatten().tolist()
    if single:
        classes, clients = data.class_names, data.client_names or (data.name,)  # a site's file
        labels = [int(data.client(i)[1][0]) for i in single[:5]]
        names = [classes[label] if classes else label for label in labels]
        examples = [f"'{clients[i]}' ({one})" for i, one in zip(single, names, strict=False)]
        _log.warning(
            "column '%s': all training rows of client %s%s are of one class; alone it would "
            "learn nothing, and its AUC may be undefined: look whether rows are missing there",
            *(data.about["target"], ", ".join(examples), ", ..." * (len(single) > 5)),
        )
