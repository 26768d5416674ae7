"""Numbers are read from lines as the papers define them, and verdicts follow from the numbers."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import fmean

import pytest
from scipy.stats import ttest_1samp

from fedloom.report.statistics import p_text
from fedloom_papers.catalogue import ENTRIES, entry
from fedloom_papers.measure import LOWER, METRICS, Context, goals, number
from fedloom_papers.pages import page
from fedloom_papers.plan import plan
from fedloom_papers.series import smoothed
from fedloom_papers.table import table
from fedloom_papers.verdicts import find_claim, overall

HERE = Path("runs/papers")  # where nothing is
CORRECTION = "the-correction-of-the-perturbation-helps"
measured = lambda wanted, context: number(wanted, {0: context}).values.get(0)


def line(curve, **more):
    made = {"digest": "d", "seed": 0, "state": "finished", "settings": {}, "version": "1"}
    made |= {"rounds": curve[-1][0], "metric": "accuracy", "curves": {"curve": curve}}
    made |= {"bytes_up": 40.0, "bytes_down": 60.0, "seconds_per_round": 2.0, "sizes": {}}
    return made | {"clients": [], "parameters": 1, "cohort": 2.0} | more


def judged(made, curve_of):
    """The table of a plan whose runs have these curves; curve_of gives None: no line."""
    lines = [
        line(curve, digest=digest, seed=place[2])
        for place, digest in made.digests.items()
        if (curve := curve_of(*place)) is not None
    ]
    return table(made, lines)


def holm(p, family=0):
    """Raw p by name -> those by Holm's rule in a family of so many, None: of all."""
    least, out = 0.0, {}
    for rank, name in enumerate(sorted(p, key=lambda name: p[name])):
        least = out[name] = max(least, min(1.0, ((family or len(p)) - rank) * p[name]))
    return out


# ------------------------------ the measures
def test_numbers_are_read_as_the_papers_define_them():
    found = entry("fedsmoo:3")
    base = line([[2, 0.5], [4, 0.76], [8, 0.9]])
    own = line([[2, 0.75], [4, 0.7], [8, 0.9]], bytes_up=100.0, bytes_down=100.0)
    both = Context(found, found.protocols[0], {"fedavg": base, "fedsmoo": own}, {74.0: 0.74})
    never = Context(found, found.protocols[0], {"fedavg": base}, {74.0: 0.95})
    cells = {(w.row.key, w.metric): w for w in found.quantities()}
    for context, row, metric, value in (
        (both, "fedavg", "rounds_to_acc", 4),  # raw: 0.76 is the first above 0.74
        (both, "fedsmoo", "rounds_to_acc", 2),
        (both, "fedsmoo", "rounds_speedup_vs_fedavg", 2),
        (both, "fedsmoo", "comm_cost_in_V", 2 * 200 / (4 * 100)),
        (both, "fedadam", "rounds_to_acc", None),  # no line
        (never, "fedavg", "rounds_to_acc", math.inf),
        (never, "fedavg", "comm_cost_in_V", math.inf),
        (never, "fedavg", "rounds_speedup_vs_fedavg", None),
    ):
        assert measured(cells[row, metric], context) == value, (row, metric)


def of_fedavg(found):
    """FedAvg's quantities of a table's first protocol."""
    protocol = found.protocols[0]
    return [w for w in found.quantities() if w.row.key == "fedavg" and w.protocol is protocol]


def test_a_maximum_is_printed_beside_the_last_value_and_never_tested():
    """Verdicts of the re-run of FedSMOO are on what ends a curve, not on its best round."""
    found = entry("fedwmsam:1")
    bare = line([[1, 0.5]]) | {"curves": {}}
    ran = line([[1, 0.5], [2, 0.875], [3, 0.75]])
    for one, largest, last in ((ran, 87.5, 75.0), (bare, None, None)):
        context = Context(found, found.protocols[0], {"fedavg": one}, {})
        numbers = {w.metric: measured(w, context) for w in of_fedavg(found)}
        assert numbers == {"test_acc_max_pct": largest, "test_acc_pct": last}
    assert {claim.metric for claim in found.claims} == {"test_acc_pct"}


def test_rounds_scale_and_averages_are_fedacgs():
    found = entry("fedacg:1a")
    fedavg = line([[10, 0.5], [50, 0.6], [100, 0.8]])
    context = Context(found, found.protocols[0], {"fedavg": fedavg}, {})
    wanted = {w.at: w for w in of_fedavg(found)}
    curve = smoothed({10: 0.5, 50: 0.6, 100: 0.8})
    for at, round in (("round=500", 50), ("round=1000", 100)):
        assert measured(wanted[at], context) == pytest.approx(100 * curve[round])
    assert smoothed({1: 0.5, 2: 0.7})[2] == pytest.approx((0.09 * 0.5 + 0.1 * 0.7) / 0.19)


def test_targets_of_a_reduced_scale_are_relative_to_fedavg():
    found = entry("fedacg:1a")
    of = lambda lines, scale: goals(found, found.protocols[0], lines, scale)
    relative = {81.0: 0.4 * 81 / 82.53, 85.0: 0.4 * 85 / 82.53}
    assert of([], "paper") == {81.0: 0.81, 85.0: 0.85} and of([], "cpu") == {}
    assert of([line([[100, 0.4]])], "cpu") == pytest.approx(relative)


# ------------------------------ the verdicts
@pytest.mark.parametrize(
    ("own", "rival", "verdict"),
    [
        ((0.80, 0.81, 0.82), (0.70, 0.71, 0.72), "holds"),
        ((0.70, 0.71, 0.72), (0.80, 0.81, 0.82), "does not hold"),
        # t = 3.0: above 2 standard errors, below Student's 4.30
        ((0.73, 0.72, 0.74), (0.72, 0.71, 0.71), "undecided"),
        ((0.90,), (0.10,), "undecided"),  # one seed is no test
        ((), (), "not measured"),
    ],
)
def test_verdicts_follow_students_t(own, rival, verdict):
    """Last accuracies of as many seeds, of FedSMOO and of what lacks its correction."""
    ends = {"fedsmoo": own, "feddyn+sam": rival}
    made = plan(entry("fedsmoo:8"), "paper", HERE, seeds=len(own))
    found = judged(made, lambda _, row, seed: [[800, ends[row][seed]]] if row in ends else None)
    assert find_claim(found.claims, CORRECTION).verdict == verdict


def test_of_several_verdicts_the_worst_counts():
    assert overall(["holds", "does not hold", "not measured"]) == "does not hold"


def test_a_claim_is_about_the_protocols_and_rows_that_a_scale_has():
    """At scale cpu FedACG's Table 1a has no Tiny-ImageNet, and on AG News FIARSE's no ScaleFL."""
    made = plan(entry("fedacg:1a"), "cpu", HERE, seeds=3)
    ends = lambda _, row, seed: [[100, 0.5 + 0.01 * seed + 0.1 * (row == "fedacg")]]
    claim = judged(made, ends).claims[0]
    assert claim.verdict == "holds"
    assert claim.reasons[2][:3] == ("tiny-100", None, "not at this scale")
    reasons = table(plan(entry("fiarse:1"), "cpu", HERE), []).claims[0].reasons
    assert reasons[2][:3] == ("ag-news-4, without scalefl", "not measured", "not measured")


def test_every_rival_that_a_sentence_names_counts_in_the_correction():
    """FedSMOO's Table 1 names seven rivals; two have lines, and p is multiplied by seven."""
    value = {"fedsmoo": (0.6, 0.61, 0.62), "fedavg": (0.7, 0.715, 0.725)}
    value["feddyn"] = (0.65, 0.7, 0.72)
    ends = lambda place, row, seed: (
        [[800, value[row][seed]]] if place == "c10-100-c3" and row in value else None
    )
    found = judged(plan(entry("fedsmoo:1"), "paper", HERE, seeds=3), ends)
    reason = find_claim(found.claims, "headline").at("c10-100-c3")
    assert len(reason.comparisons) == 7 and len(reason.measured) == 2
    near, far = sorted((one.gap for one in reason.measured), key=lambda gap: gap.p)
    assert near.p_holm == pytest.approx(7 * near.p) and far.p_holm == pytest.approx(6 * far.p)
    assert reason.verdict == "does not hold", "one is clear, however few have lines"
    assert "5 not decided: no lines" in reason.words
    assert reason.against("fedcm").verdict == "not measured"


def test_a_verdict_stands_on_three_evaluations_or_says_on_how_many():
    made = plan(entry("fedsmoo:8"), "paper", HERE, seeds=3)

    def words(curve):
        found = judged(made, lambda _, row, seed: [[t, a + 0.01 * seed] for t, a in curve])
        return find_claim(found.claims, CORRECTION).at().words

    ten = [[80.0 * t, 0.3 if t < 8 else 0.6] for t in range(1, 11)]
    assert "FedSMOO 61 less" in words(ten), "the last three of ten"
    assert "evaluation" not in words(ten)
    assert "on 2 evaluations" in words(ten[-5:])
    assert words(ten[-1:]).endswith("on 1 evaluation")


def test_verdicts_count_common_seeds_the_last_tenth_and_the_rivals():
    """FedAdam and FAFED get two seeds more; the last evaluation of each is an outlier."""
    rows = ("fafed", "fedavg", "scaffold", "stem", "fedadam", "fedams")
    made, want = plan(ENTRIES["fafed:2b"], "cpu", HERE, seeds=5), {}

    def ends(_, row, seed):
        if row not in rows or seed >= (5 if row in ("fafed", "fedadam") else 3):
            return None
        place = rows.index(row)
        level = 0.9 - 0.01 * place + 0.001 * ((seed + 1) ** (place + 1) % 7)
        curve = [[5 * t, level + 0.0001 * t] for t in range(1, 31)]
        curve[-1][1] = 0.5 if row == "fafed" else 0.99
        want.setdefault(row, {})[seed] = fmean(v for _, v in curve[-3:])
        return curve

    found = judged(made, ends)
    (place,) = found.seeds
    assert [*found.seeds[place]] == [0, 1, 2]
    assert found.extra_seeds[place] == {"FedAdam": [3, 4], "FAFED": [3, 4]}
    gaps = {row: [want["fafed"][s] - want[row][s] for s in range(3)] for row in rows[1:]}
    hardest = min(gaps, key=lambda row: fmean(gaps[row]))
    p = holm({row: float(ttest_1samp(gap, 0.0).pvalue) for row, gap in gaps.items()})
    name = {row.key: row.name for row in made.entry.rows}[hardest]
    mean, gap = fmean(want[hardest][s] for s in range(3)), fmean(gaps[hardest])
    (reason,) = found.claims[0].reasons
    assert f"less {name} {mean:.4g} is {gap:+.4g}" in reason.words
    assert f"(by Holm {p_text(p[hardest])}), 3 seeds" in reason.words
    fafed = next(n for n in found.numbers if n.quantity.row.key == "fafed")
    assert [*fafed.tested.values()] == pytest.approx([want["fafed"][s] for s in range(3)])
    assert [*fafed.values.values()] == [0.5] * 3, "what is shown beside it is the last evaluation"


def test_where_lower_is_better_a_claim_has_its_sign_and_its_true_round():
    levels = {"fedadam": 0.35, "fafed": 0.40}
    made = plan(ENTRIES["fafed:fig2"], "cpu", HERE, [*levels], seeds=3)
    lines = []
    for (place, row, seed), digest in made.digests.items():
        if place == "fashion-low":
            level = levels[row] + 0.0001 * seed * len(row)
            curve = [[t, level + 0.001 * (150 - t)] for t in range(1, 151)]
            both = {"curves": {"curve": curve, "train_loss": curve}}
            lines.append(line(curve, digest=digest, seed=seed, scale="cpu", **both))
    found = table(made, lines)
    assert found.claims[0].verdict == "does not hold"
    # FAFED's loss is higher: a plus, and not the better side
    said = found.claims[0].reasons[0].words
    assert "FAFED 0.4075 less FedAdam 0.3577 is +0.0498" in said and "(lower is better)" in said
    text = page(found, ())
    assert "training loss, round 30 (100 in the paper)" in text
    assert "training loss, round 150 (500 in the paper)" in text


def test_of_costs_and_losses_less_is_better():
    words = ("loss", "seconds", "rounds to", "traffic", "models sent", "perplexity", "roughness")
    costs = {name for name, one in METRICS.items() if any(word in one.words for word in words)}
    speed_ups = {name for name in costs if "speed-up" in METRICS[name].words}
    over = {"fedsmoo_sec_per_round_over_this"}  # the rival's seconds: how much slower FedSMOO is
    assert costs - speed_ups - over <= {*LOWER} and not (speed_ups | over) & {*LOWER}
