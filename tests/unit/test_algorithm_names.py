"""Every method that `fedloom list algorithms` shows is a name of fedloom.algorithms."""

from __future__ import annotations

import inspect
import re
import typing

import pytest

from fedloom import algorithms
from fedloom.algorithm import Algorithm
from fedloom.algorithms import FedAdam, FedAvgM, FedProx, FedSAM
from fedloom.algorithms.registry import ALGORITHMS, label_of, make_algorithm


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_listed_method_is_a_name_in_python(name):
    label = ALGORITHMS.label(name)
    # FedProx, SCAFFOLD: as tables say it; a label that is no name of Python's has its file's name
    wanted = label if label.isidentifier() else name.replace("_", "")
    (found,) = {n for n in algorithms.__all__ if n == wanted} or {
        n for n in algorithms.__all__ if n.lower() == wanted and n[0].isupper()
    }
    make = getattr(algorithms, found)
    assert make() == make_algorithm(name) and label_of(make()) == label
    assert make is ALGORITHMS.known(name) and make.__name__.lower() == name.replace("_", "")
    if not inspect.isclass(make):  # what a type checker and an editor see of it
        hints = typing.get_type_hints(make)
        assert hints.pop("return") is Algorithm
        assert hints.keys() == inspect.signature(make).parameters.keys()
        assert re.match(rf"{re.escape(label)} \(", make.__doc__) and "Reference: " in make.__doc__


def test_papers_names_take_hyper_parameters():
    assert FedProx(mu=0.1) == make_algorithm("fedprox", mu=0.1)
    assert repr(FedProx(mu=0.1)) == "Prox(inner=FedAvg(server_lr=1.0), mu=0.1)"
    assert FedAvgM(beta=0.4) == algorithms.fedavgm(beta=0.4)
    assert FedAdam(tau=0.1) != FedAdam() and FedSAM(rho=0.1) == algorithms.fedsam(rho=0.1)
