"""Module names of fedloom 0.1: importing one warns, and gives the module that took its place."""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
import warnings
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.abc import Loader, MetaPathFinder

    class _Finder(MetaPathFinder, Loader): ...
else:  # the import system asks for the methods only, and the bases take 13 ms to import
    _Finder = object

# below fedloom: old name -> new name; a package stands for all that it holds. Not here are modules
# named as a function that their package gives (data.shakespeare, data.folders): they would hide it
MOVED = {
    "arguments": "experiment.arguments",
    "blocks": "core.blocks",
    "capacities": "federation.capacities",
    "checks.common": "checks.engine_agreement",
    "checks.find": "checks.discovery",
    "checks.options": "checks.hyperparameters",
    "checks.problems": "checks.tiny_losses",
    "checks.records": "checks.compare",
    "checks.runs": "checks.engine_agreement",
    "checks.setting": "checks.tiny_federation",
    "checks.state": "checks.purity",
    "checks.watch": "checks.purity",
    "cli.browse": "cli.list_and_show",
    "cli.costs": "cli.method_costs",
    "cli.cut": "cli.export_submodel",
    "cli.dry": "cli.dry_run",
    "cli.output": "cli.printing",
    "cli.results": "cli.compare_and_report",
    "cli.script": "cli.exported",
    "codecs": "compression.codecs",
    "codecs.dropping": "compression.codecs.random_dropping",
    "codecs.indices": "compression.codecs.index_coding",
    "codecs.lowprecision": "compression.codecs.low_precision",
    "codecs.rice": "compression.codecs.golomb_rice",
    "cohorts": "federation.sampling",
    "compatibility": "cli.compatibility",
    "config.compress": "config.composite_tables",
    "config.dealing": "config.composite_tables",
    "config.page": "config.help_texts",
    "config.read": "config.sources",
    "config.reference": "config.help_texts",
    "config.tables": "config.validation",
    "data.arrays": "data.tensors",
    "data.assemble": "data.dataset",
    "data.build": "data.own.in_memory",
    "data.catalogue": "data.published.verify",
    "data.checks": "data.validation",
    "data.cifar": "data.published.images",
    "data.client_tests": "data.client_test_sets",
    "data.columns": "data.own.columns",
    "data.download": "data.published.download",
    "data.fetch": "data.published.download",
    "data.idx": "data.published.idx",
    "data.leaf": "data.published.leaf",
    "data.partition.by_class": "data.partition.label_skew",
    "data.partition.dealing": "data.partition.base",
    "data.partition.filling": "data.partition.dirichlet_sampled",
    "data.partition.mixed": "data.partition.label_skew",
    "data.partition.unlabelled": "data.partition.iid",
    "data.prepared": "data.published.cache",
    "data.ragged": "data.client_indices",
    "data.reading": "data.published.text_files",
    "data.reviews": "data.published.text_classification",
    "data.sources": "data",
    "data.transform": "data.transforms",
    "data.wikitext": "data.published.wikitext",
    "data.words": "data.published.vocabulary",
    "describe": "experiment.provenance",
    "devices": "federation.devices",
    "downlink": "compression.downlink",
    "dropout": "core.dropout",
    "engines.ahead": "engines.prefetch",
    "engines.answers": "engines.summation",
    "engines.chunks": "engines.vmap_range",
    "engines.client": "engines.client_round",
    "engines.explained": "engines.error_context",
    "engines.guard": "engines.author_checks",
    "engines.kept": "engines.self_state",
    "engines.oracle": "engines.gradient",
    "engines.shared": "engines.shared_memory",
    "engines.statistics": "engines.batch_statistics",
    "engines.sums": "engines.summation",
    "engines.together": "engines.vmap_round",
    "evaluation": "server.evaluation",
    "feedback": "compression.error_feedback",
    "files": "storage.atomic",
    "fitting": "experiment.preflight",
    "interrupts": "core.interrupts",
    "layout": "core.layout",
    "ledger": "server.ledger",
    "link": "compression.link",
    "local": "federation.local",
    "loop": "server.rounds",
    "memory": "storage.client_state",
    "metrics": "engines.metrics",
    "mixtures": "algorithms",
    "models.blocks": "models.layers",
    "models.exits": "models.multi_exit",
    "models.pretrained": "models.hugging_face",
    "models.small": "models.cnn",
    "net": "core.net",
    "progress": "server.progress",
    "recipes.handwriting": "recipes.mnist",
    "recipes.pictures": "recipes.images",
    "report.load": "report.runs",
    "report.series": "report.curve_data",
    "report.sizes": "report.submodels",
    "report.support": "report.style",
    "result": "experiment.result",
    "rng": "core.rng",
    "rows": "server.ledger",
    "rundir": "storage.run_directory",
    "schedules": "federation.schedules",
    "servers": "wrappers.registry",
    "sizes": "server.submodel_evaluation",
    "vector": "core.vector",
    "views": "submodels",
    "views.budget": "submodels.width_budget",
    "views.cut": "submodels.slicing.walk",
    "views.depth": "submodels.scalefl",
    "views.importance": "submodels.fiarse",
    "views.layers": "submodels.slicing.layers",
    "views.ordered": "submodels.fjord",
    "views.part": "submodels.slicing.flow",
    "views.rolling": "submodels.fedrolex",
    "views.width": "submodels.heterofl",
    "wire": "core.wire",
    "wrappers.adaptive": "wrappers.server_optimisers",
    "wrappers.gradient": "wrappers.client",
    "zoo": "algorithms.registry",
}

# classes of fedloom.submodels: old name -> new name, in run folders too
SUBMODELS = {
    "Depth": "ScaleFL",
    "Importance": "FIARSE",
    "Ordered": "FjORD",
    "Rolling": "FedRolex",
    "Width": "HeteroFL",
}

# functions, by the module of fedloom that holds them now: old name -> new name
FUNCTIONS = {"federation.capacities": {"deal": "assign_capacities"}}


class OldNames(_Finder):
    """Finds the modules of fedloom under their old names, and nothing else."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """-> a spec for an old name of ours, or None."""
        if not fullname.startswith("fedloom.") or new_name(fullname) == fullname:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        """An empty module for the moment: exec_module() puts the real one in its place."""

    def exec_module(self, module: ModuleType) -> None:
        """Warn, and let the old name stand for the new module."""
        old, new = module.__name__, new_name(module.__name__)
        warnings.warn(f"{old} is now {new}", DeprecationWarning, stacklevel=2)
        sys.modules[old] = found = importlib.import_module(new)
        if names := FUNCTIONS.get(new.removeprefix("fedloom.")):
            vars(found)["__getattr__"] = lambda name: _old_function(found, names, name)


def _old_function(module: ModuleType, names: dict[str, str], name: str) -> Any:
    """A function under its name of fedloom 0.1, with a warning."""
    if name not in names:
        raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
    warnings.warn(f"{name} is now {names[name]}", DeprecationWarning, stacklevel=3)
    return getattr(module, names[name])


def new_name(old: str) -> str:
    """What a dotted name is called now; the same if it has not moved.

    >>> new_name("fedloom.zoo"), new_name("fedloom.views.base"), new_name("fedloom.errors")
    ('fedloom.algorithms.registry', 'fedloom.submodels.base', 'fedloom.errors')
    """
    parts = old.split(".")[1:]
    for n in range(len(parts), 0, -1):
        if found := MOVED.get(".".join(parts[:n])):
            return ".".join(["fedloom", found, *parts[n:]])
    return old


def install() -> None:
    """Let `import fedloom.zoo` work. Asked first, else what lies in a package that moved would be
    loaded a second time under its old name.
    """
    if not any(isinstance(finder, OldNames) for finder in sys.meta_path):
        sys.meta_path.insert(0, OldNames())
