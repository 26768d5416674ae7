"""Recipes: complete, plain, documented; the small one does what it is for."""

from __future__ import annotations

import pytest

from fedloom.config import resolve
from fedloom.config.overrides import RUN
from fedloom.core.layout import Layout
from fedloom.models import MODELS
from fedloom.recipes import RECIPES


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_plain_settings_and_says_what_it_is(name: str) -> None:
    made = RECIPES[name]()
    assert made == RECIPES[name](), "two calls share nothing and agree"
    assert made is not RECIPES[name]()
    assert RECIPES[name].about
    tables = {"algorithm", "model", "data", "local", "evaluate", "submodel", "compress"}
    tables |= {"objective", "churn"}
    assert set(made) <= {*RUN, *tables}
    values = resolve(name).values
    assert values["name"] == name
    assert values["evaluate"]["target"] > 0


@pytest.mark.parametrize("name", RECIPES)
def test_it_trains_on_what_the_public_download_has(name: str) -> None:
    assert resolve(name).values["data"].get("part", "train") == "train"


@pytest.mark.parametrize("name", RECIPES)
def test_its_model_has_a_class_for_every_label(name: str) -> None:
    values = resolve(name).values
    options = {k: v for k, v in values["model"].items() if k != "name"}
    model = MODELS[values["model"]["name"]](**options)
    others = {"cifar100": 100, "femnist": 62, "shakespeare": 80, "wikitext2": 33_278, "ag_news": 4}
    others |= {
        "flamby_heart": 1,
        "flamby_tcga": 1,
        "tiny_imagenet": 200,
        "celeba": 2,
        "heart": 2,
        "shapes": 3,
        "fafed_wikitext2": 33_278,
    }
    classes = others.get(name) or others.get(values["data"]["name"], 10)
    assert Layout.of(list(model.named_parameters())).shapes[-1] == (classes,)


def test_fashion_follows_fedacgs_protocol() -> None:
    values = resolve("fashion_dirichlet").values
    local = values["local"]
    assert values["data"]["partition"] == {"name": "dirichlet", "alpha": 0.3, "clients": 100}
    assert values["cohort"] == 0.05
    assert (local["epochs"], local["batch"], local["lr"]) == (5, 50, 0.1)
    assert (local["clip"], local["weight_decay"]) == (10, 1e-3)
    assert local["schedule"] == {"name": "exponential", "decay": 0.998, "step_decay": 1.0}


@pytest.mark.slow
def test_the_demo_tells_methods_apart() -> None:
    reached = {}
    for name in ("fedavg", "fedacg"):
        summary = resolve("digits", [f"algorithm={name}"]).experiment().run().summary
        reached[name] = summary["rounds_to_target"]
    assert reached["fedacg"] is not None
    assert reached["fedavg"] is None or reached["fedavg"] > reached["fedacg"]
