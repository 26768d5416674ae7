"""Capacities: what may be given, and how they are assigned to the clients."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloom.checks.tiny_federation import experiment
from fedloom.config import resolve
from fedloom.errors import ConfigError
from fedloom.federation.capacities import assign_capacities, levels_of, share_of
from fedloom.submodels import HeteroFL

WRONG = (0, -0.1, 1.5, "3/2", "1/0", "1e999", "half", float("nan"), True, None, "")


@pytest.mark.parametrize("value", WRONG)
def test_a_share_outside_0_to_1_is_refused_in_one_line(value):
    with pytest.raises(ConfigError, match=r"must be in \(0, 1\], got") as caught:
        share_of(value)
    assert "\n" not in str(caught.value) and "'1/4'" in str(caught.value)


def test_levels_may_be_numbers_fractions_or_one_text():
    expected = (1 / 64, 1 / 16, 0.25, 1.0)
    assert levels_of(["1/64", "1/16", 0.25, 1]) == expected
    assert levels_of("1/64,1/16, 0.25,1") == expected
    assert levels_of("1/4") == (0.25,)


@pytest.mark.parametrize("nothing", [[], {}, 0.5, None])
def test_no_levels_are_refused(nothing):
    with pytest.raises(ConfigError, match="capacities must be levels such as"):
        levels_of(nothing)


@given(st.integers(4, 60))
def test_levels_are_dealt_in_turn_and_groups_differ_by_one_at_most(clients):
    dealt = assign_capacities(["1/64", "1/16", "1/4", 1], clients)
    assert dealt[:4] == (1 / 64, 1 / 16, 1 / 4, 1.0)
    counts = Counter(dealt).values()
    assert len(dealt) == clients and max(counts) - min(counts) <= 1


@given(st.lists(st.integers(1, 20), min_size=2, max_size=5), st.integers(1, 200), st.integers(0, 9))
def test_a_distribution_gives_each_level_its_share_to_one_client(weights, clients, seed):
    shares = {(i + 1) / 8: w / sum(weights) for i, w in enumerate(weights)}
    dealt = assign_capacities(shares, clients, seed)
    assert len(dealt) == clients
    for level, share in shares.items():
        assert abs(dealt.count(level) - share * clients) < 1
    assert dealt == assign_capacities(shares, clients, seed)


def test_a_distribution_is_dealt_at_random_by_the_seed():
    shares = {"1/4": 0.5, 1: 0.5}
    one, other = assign_capacities(shares, 40, 0), assign_capacities(shares, 40, 1)
    assert one != other
    assert sorted(one) == sorted(other) == [0.25] * 20 + [1.0] * 20


@pytest.mark.parametrize("shares", [{1: 0.5}, {0.5: 1.5, 1: -0.5}, {0.5: "x", 1: 1.0}])
def test_shares_of_the_clients_add_up_to_1(shares):
    with pytest.raises(ConfigError, match="share"):
        assign_capacities(shares, 4)


def test_a_file_has_one_capacity_for_each_client(tmp_path):
    plain, listed = tmp_path / "own.txt", tmp_path / "own.json"
    plain.write_text("# phones\n1/64\n1/4  # a better one\n\n1\n")
    listed.write_text(json.dumps(["1/64", 0.25, 1]))
    assert assign_capacities(plain, 3) == assign_capacities(str(listed), 3) == (1 / 64, 0.25, 1.0)
    with pytest.raises(ConfigError, match=r"own\.txt' has 3 capacities for 5 clients"):
        assign_capacities(plain, 5)
    plain.write_text("0.5\n2\n")
    with pytest.raises(ConfigError, match=r"own\.txt', client 1 must be in \(0, 1\], got '2'"):
        assign_capacities(plain, 2)
    plain.write_text("")
    with pytest.raises(ConfigError, match="is empty"):
        assign_capacities(plain, 2)
    with pytest.raises(ConfigError, match="neither levels such as '1/4, 1' nor a file"):
        assign_capacities(str(tmp_path / "nowhere.txt"), 2)


def test_more_capacities_than_clients_are_refused():
    with pytest.raises(ConfigError, match="3 capacities are given for 2 clients"):
        assign_capacities([0.25, 0.5, 1.0], 2)


def test_a_configuration_takes_all_of_them(tmp_path):
    of = lambda *changes: resolve("digits", ["submodel=heterofl", *changes])
    table = of("submodel.capacities=1/4,1", "submodel.shares=[0.9, 0.1]").values["submodel"]
    assert (table["capacities"], table["shares"]) == ([0.25, 1.0], [0.9, 0.1])
    dealt = of("submodel.capacities=1/4,1", "submodel.shares=[0.9, 0.1]").experiment().build()
    assert dealt.fed.capacities.count(0.25) == 45
    file = tmp_path / "own.txt"
    file.write_text("\n".join(["1/4"] * 49 + ["1"]))
    assert of(f"submodel.capacities={file}").experiment().build().fed.capacities[-2:] == (0.25, 1.0)
    assert of("submodel.capacities=['1/4', 1.0]").values["submodel"]["capacities"] == [0.25, 1.0]
    default = of().values["submodel"]["capacities"]
    assert default == [1 / 64, 1 / 16, 1 / 4, 1.0]


def test_a_resumed_run_notices_another_file(tmp_path):
    from fedloom.experiment.provenance import configuration, fingerprint

    file, found = tmp_path / "own.txt", []
    for text in ("1\n" * 6, "1/4\n" * 6):
        file.write_text(text)
        run = experiment(submodel=HeteroFL(), capacities=file)
        loop = run.build()
        found.append(fingerprint(configuration(run, loop), run.data, loop)["submodel"])
    assert found[0] != found[1]
