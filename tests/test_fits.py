"""Tables of runs: fitted, measured on what was held out, and solved."""

import json

import numpy as np
import pytest

from aioli.fits import Fit, Runs, Wish, caps_from_tokens, fit_runs, solve
from aioli.fits.diagnose import f_test, interactions

A = np.array([[2.0, 0.3, 0.1], [0.2, 1.5, 0.4], [0.1, 0.2, 1.8]])
GROUPS = ("code", "books", "web")


def world(runs=40, noise=0.003, seed=0):
    rng = np.random.default_rng(seed)
    P = rng.dirichlet(np.ones(3), runs)
    return rng, P, 2.0 + np.exp(-P @ A.T) + noise * rng.normal(size=(runs, 3))


def table(runs=40, **settings):
    _, P, L = world(runs, **settings)
    return Runs(GROUPS, GROUPS, P, L)


# ---------------------------------------------------------------- fitting


@pytest.mark.parametrize("law", ["log-linear", "transfer", "trees", "linear:ridge=0.1"])
def test_laws_are_measured_on_what_they_have_not_seen(law):
    fit = fit_runs(table(120), law)
    assert fit.scores.how == "5-fold"
    assert fit.scores.r2.min() > (0.9 if law in ("log-linear", "transfer") else 0.5)
    assert fit.scores.spearman.min() > 0.8


def test_held_out_error_is_honest():
    """With pure noise nothing is explained, whatever the law; in-sample R² would say otherwise."""
    rng = np.random.default_rng(0)
    runs = Runs(tuple("abcdefgh"), ("x",), rng.dirichlet(np.ones(8), 40), rng.normal(size=(40, 1)))
    for law in ("linear", "log-linear", "transfer:terms=4", "trees"):
        fit = fit_runs(runs, law)
        assert fit.scores.r2[0] < 0.1
        assert any(trouble.kind == "poor" for trouble in fit.troubles)


def test_runs_of_one_mixture_stay_in_one_fold():
    rng = np.random.default_rng(0)
    P = np.repeat(rng.dirichlet(np.ones(3), 25), 4, axis=0)
    runs = Runs(GROUPS, ("x",), P, np.repeat(rng.normal(size=25), 4)[:, None])
    assert fit_runs(runs, "trees").scores.r2[0] < 0.3  # noise that repeats must not look like knowledge


def test_auto_takes_the_simplest_that_is_good_enough():
    linear = world(60)[1]
    straight = Runs(GROUPS, ("x",), linear, 3 - linear @ A[:1].T + 0.01 * np.random.default_rng(1).normal(size=(60, 1)))
    assert fit_runs(straight, "auto").name == "linear"
    fit = fit_runs(table(80), "auto")
    assert fit.name in ("log-linear", "transfer")
    assert {each.name for each in fit.choices} >= {"linear", "log-linear", "transfer", "trees"}
    assert sum(each.chosen for each in fit.choices) == 1


def test_small_and_collinear_tables():
    assert fit_runs(table(6)).scores.how == "leave-one-out"
    with pytest.raises(ValueError, match="at least 3 are needed"):
        fit_runs(table(2))
    with pytest.raises(ValueError, match="same mixture"):
        fit_runs(Runs(GROUPS, ("x",), np.full((4, 3), 1 / 3), np.ones((4, 1))))
    x = np.linspace(0.1, 0.4, 12)
    tied = Runs(GROUPS, ("x",), np.stack([x, x, 1 - 2 * x], 1), (2 + np.exp(-3 * x))[:, None])
    with pytest.raises(ValueError, match="tied"):
        fit_runs(tied)
    assert fit_runs(tied, ridge=1e-4).scores.r2[0] > 0.9
    assert fit_runs(tied, "transfer").scores.r2[0] > 0.9


def test_a_fit_survives_its_file(tmp_path):
    for law in ("log-linear", "linear", "transfer:terms=2", "trees"):
        fit = fit_runs(table(60), law)
        fit.save(tmp_path / "fit.json")
        again = Fit.load(tmp_path / "fit.json")
        assert again.name == fit.name == law
        Q = np.random.default_rng(1).dirichlet(np.ones(3), 20)
        np.testing.assert_array_equal(again.predict(Q), fit.predict(Q))
        np.testing.assert_array_equal(again.scores.mse, fit.scores.mse)


def test_constant_and_single_losses_are_no_trouble():
    rng, P, L = world(30)
    L[:, 1] = 3.1
    L[1:, 2] = np.nan
    runs = Runs(GROUPS, GROUPS, P, L)
    for law in ("linear:ridge=0.1", "transfer", "trees"):
        fit = fit_runs(runs, law)
        assert fit.scores.r2[1] == 1.0
        assert {trouble.target for trouble in fit.troubles} <= {"code"}
    assert fit_runs(Runs(GROUPS, GROUPS[:2], P, L[:, :2]), "auto").name in ("log-linear", "transfer")
    fit_runs(Runs(GROUPS, ("x",), P, np.full((30, 1), 2.5)))
    runs = Runs(GROUPS, GROUPS, P, np.where(rng.random((30, 3)) < 0.3, np.nan, L))
    fit_runs(Runs(GROUPS, GROUPS[:2], P, runs.L[:, :2]), "auto")


def test_auto_leaves_out_what_these_runs_do_not_determine():
    for seed in range(2):
        rng = np.random.default_rng(seed)
        P = rng.dirichlet(np.ones(5), 4)
        runs = Runs(tuple("abcde"), ("x",), P, (2 + np.exp(-P @ np.arange(5)) + 0.01 * rng.normal(size=4))[:, None])
        assert fit_runs(runs, "auto").name.startswith(("transfer", "trees"))
    fit = fit_runs(table(5, seed=1), "auto")
    chosen = next(each for each in fit.choices if each.chosen)
    assert chosen.error < 1 or chosen.worse == 0


def test_names_instead_of_numbers_in_what_is_refused():
    P = np.array([[0.2, 0.8, 0.0], [0.4, 0.6, 0.0], [0.5, 0.5, 0.0], [0.9, 0.1, 0.0]])
    with pytest.raises(ValueError, match=r"group web is 0 in every mixture.*--ridge"):
        fit_runs(Runs(GROUPS, ("x",), P, np.arange(4.0)[:, None]))


def test_damaged_fits_are_refused(tmp_path):
    path = tmp_path / "fit.json"
    fit_runs(table(20)).save(path)
    path.write_text(path.read_text().replace("0.", "1.", 1))
    with pytest.raises(ValueError, match=r"fit\.json does not match its checksum"):
        Fit.load(path)
    good = json.loads(path.read_text())
    del good["checksum"]  # damage that a checksum does not show
    for change, words in (
        ({"schema": 2}, "schema 2"),
        ({"kind": "x"}, "not a fit"),
        ({"groups": ["a"]}, "do not fit"),
        ({"law": {"name": "os.system", "settings": {}}}, "no law"),
        ({"law": good["law"] | {"parameters": {}}}, "no parameter A"),
        ({"law": good["law"] | {"settings": {"evil": 1}}}, "no setting"),
        ({"runs": {"proportions": [[2, 3]], "losses": [[1]]}}, "damaged"),
        ({"held_out": None}, "damaged"),
    ):
        path.write_text(json.dumps(good | change))
        with pytest.raises(ValueError, match=words):
            Fit.load(path)
    path.write_text('{"kind"')
    with pytest.raises(ValueError, match="not JSON"):
        Fit.load(path)


# ---------------------------------------------------------------- trust


def test_a_right_law_raises_no_alarm():
    alarms = sum(len(fit_runs(table(60, seed=seed)).troubles) for seed in range(20))
    assert alarms <= 1


def test_interactions_are_noticed():
    _, P, L = world(60)
    L[:, 0] += 0.8 * P[:, 1] * P[:, 2]
    fit = fit_runs(Runs(GROUPS, GROUPS, P, L))
    assert [t.target for t in fit.troubles if t.kind == "interactions"] == ["code"]


def test_loss_that_rises_again_at_the_edge_is_noticed():
    """Figure 7 of the paper: the loss on books grows when books take everything."""
    x = np.repeat(np.linspace(0.02, 0.98, 25), 2)
    rng = np.random.default_rng(0)
    books = 3 + 0.5 * np.exp(-4 * x) + 0.3 * np.maximum(x - 0.75, 0) + 0.002 * rng.normal(size=50)
    web = 3 + np.exp(-2 * (1 - x)) + 0.002 * rng.normal(size=50)
    fit = fit_runs(Runs(("books", "web"), ("books", "web"), np.stack([x, 1 - x], 1), np.stack([books, web], 1)))
    assert {t.target for t in fit.troubles} == {"books"}


def test_f_test_has_its_size_and_its_power():
    rng = np.random.default_rng(0)
    P = rng.dirichlet(np.ones(4), 60)
    small = [f_test(rng.normal(size=60), P, interactions(P)).p_value for _ in range(400)]
    assert abs(np.mean(np.array(small) < 0.05) - 0.05) < 0.035
    test = f_test(rng.normal(size=60) + 40 * P[:, 0] * P[:, 1], P, interactions(P))
    assert test.p_value < 1e-4
    assert test.terms == 6
    assert f_test(rng.normal(size=8), P[:8], interactions(P[:8])) is None


# ---------------------------------------------------------------- solving


def truth(p):
    return (2.0 + np.exp(-p @ A.T)).mean(-1)


def coverage(runs, law, worlds, resamples):
    """How often intervals hold the truth: of shares, of the loss of the chosen mixture, of what uniform would cost."""
    from aioli.lmo import Direct, LogLinearStatic

    exact = LogLinearStatic()
    exact.A_, exact.b_, exact.c_ = A, np.ones(3), np.full(3, 2.0)
    best = Direct().solve(exact).proportions
    held = np.zeros(3)
    for seed in range(worlds):
        rows = table(runs, noise=0.01, seed=seed)
        found = solve(fit_runs(rows, law), Wish.of(rows), resamples)
        assert found.best.gap < 1e-9
        chosen = truth(found.best.proportions)
        assert runs < 10 or chosen - truth(best) < 0.005
        low, high = found.compared["uniform"].interval
        held[0] += ((found.interval[:, 0] <= best) & (best <= found.interval[:, 1])).mean()
        held[1] += found.loss_interval[0] <= chosen <= found.loss_interval[1]
        held[2] += low <= truth(np.full(3, 1 / 3)) - chosen <= high
    return held / worlds


@pytest.mark.parametrize("runs", [6, 20])
def test_intervals_hold_the_truth(runs):
    assert coverage(runs, "log-linear", 5, 20).min() >= 0.8  # of 95%, in few worlds; the slow test says more


@pytest.mark.slow
@pytest.mark.parametrize("runs", [6, 20])
def test_intervals_hold_the_truth_as_often_as_they_say(runs):
    assert coverage(runs, "log-linear", 60, 40).min() > 0.87  # of 95%: 60 worlds are within 8% of that


def test_as_good_means_within_one_standard_error():
    runs = table(40, noise=0.01)
    found = solve(fit_runs(runs), Wish.of(runs), 60)
    assert (found.near[:, 0] <= found.best.proportions).all()
    assert (found.near[:, 1] >= found.best.proportions).all()
    rng = np.random.default_rng(0)
    tried = rng.dirichlet(np.ones(3), 20000)
    close = tried[found.fit.predict(tried).mean(1) <= found.best.value + found.stderr]
    assert (close.min(0) >= found.near[:, 0] - 2e-3).all()
    assert (close.max(0) <= found.near[:, 1] + 2e-3).all()
    np.testing.assert_allclose(close.min(0), found.near[:, 0], atol=0.03)
    np.testing.assert_allclose(close.max(0), found.near[:, 1], atol=0.03)


def test_weights_bounds_and_targets():
    runs = table(40)
    fit = fit_runs(runs)
    alone = solve(fit, Wish.of(runs, targets=("code",)), 0)
    assert alone.best.proportions[0] > 0.99
    more = solve(fit, Wish.of(runs, weights={"code": 4}), 0).best.proportions[0]
    assert more > solve(fit, Wish.of(runs), 0).best.proportions[0] + 0.02
    bound = solve(fit, Wish.of(runs, floors={"web": 0.5}, caps={"code": 0.1}), 0).best.proportions
    assert bound[2] >= 0.5 - 1e-12
    assert bound[0] <= 0.1 + 1e-12
    for wrong, words in (
        ({"weights": {"x": 1}}, "no target 'x'"),
        ({"weights": {"code": -1}}, "must not be negative"),
        ({"floors": {"web": 0.5}, "caps": {"web": 0.4}}, "at least 0.5 and at most 0.4"),
        ({"caps": dict.fromkeys(GROUPS, 0.2)}, "caps"),
        ({"targets": ("y",)}, "no target 'y'"),
    ):
        with pytest.raises(ValueError, match=words):
            Wish.of(runs, **wrong)


def test_caps_follow_from_the_tokens_there_are():
    caps = caps_from_tokens({"code": 30e9, "books": 5e9, "web": 0}, GROUPS, 100e9, 4)
    assert caps == {"code": 1.0, "books": 0.2, "web": 0.0}
    with pytest.raises(ValueError, match="'web' is not said"):
        caps_from_tokens({"code": 30e9, "books": 5e9}, GROUPS, 100e9, 4)
    with pytest.raises(ValueError, match="fewer than the budget"):
        caps_from_tokens(dict.fromkeys(GROUPS, 1e9), GROUPS, 100e9, 4)
    with pytest.raises(ValueError, match="no group 'x'"):
        caps_from_tokens({"x": 1e9}, GROUPS, 1e9, 4)


def test_simple_mixtures_are_compared_and_untried_shares_are_told():
    rng = np.random.default_rng(0)
    P = 0.4 * rng.dirichlet(np.ones(3), 30) + 0.6 / 3
    runs = Runs(GROUPS, ("code",), P, (2 + np.exp(-P @ A[:1].T)) + 0.002 * rng.normal(size=(30, 1)))
    found = solve(fit_runs(runs), Wish.of(runs, natural={"code": 1, "books": 2, "web": 1}), 40)
    assert set(found.compared) == {"uniform", "natural", "best run"}
    np.testing.assert_allclose(found.compared["natural"].proportions, [0.25, 0.5, 0.25])
    assert found.compared["uniform"].worse > 0
    assert found.compared["uniform"].interval[0] > 0
    assert any("code at 100.0% is beyond what any run has tried" in note for note in found.notes)


def test_no_intervals_where_nothing_is_left_over():
    runs = table(4)
    found = solve(fit_runs(runs), Wish.of(runs))
    assert found.interval is None
    assert any("as many parameters" in note for note in found.notes)


def test_trees_keep_bounds_and_promise_nothing():
    runs = table(80)
    found = solve(fit_runs(runs, "trees"), Wish.of(runs, caps={"code": 0.2}, floors={"web": 0.1}), 10)
    assert found.best.gap is None
    assert found.best.proportions[0] <= 0.2 + 1e-9
    assert found.best.proportions[2] >= 0.1 - 1e-9
    assert any("no certificate" in note for note in found.notes)
    assert all(each.worse >= 0 for each in found.compared.values() if each.within)


def test_runs_below_the_interval_and_what_the_best_run_measured_are_told():
    """Losses that fall where two groups meet, which a linear law cannot follow."""
    rng = np.random.default_rng(0)
    P = rng.dirichlet(np.ones(3), 60)
    L = 3.0 - 2.0 * (P[:, :1] * P[:, 1:2]) + 0.001 * rng.normal(size=(60, 1))
    runs = Runs(GROUPS, ("t",), P, L)
    found = solve(fit_runs(runs, "linear"), Wish.of(runs), 40)
    below = int((L[:, 0] < found.loss_interval[0]).sum())
    assert below > 0
    assert any(note.startswith(f"{below} of 60 runs measured less") for note in found.notes)
    assert any("best at a corner of what is allowed" in note for note in found.notes)
    assert found.compared["best run"].measured == pytest.approx(L.min())
    assert found.to_json()["compared"]["best run"]["measured"] == pytest.approx(L.min())
    capped = solve(fit_runs(runs, "linear"), Wish.of(runs, caps={"web": 0.3, "code": 0.3, "books": 0.4}), 40)
    inside = L[(P <= [0.3, 0.4, 0.3]).all(1), 0]
    assert not any(f"of {len(L)} runs measured" in note for note in capped.notes)
    assert len(inside) < len(L)
    good = Runs(GROUPS, ("t", "u"), P, np.exp(-P @ rng.uniform(0.5, 2, (3, 2))) + 2.0)
    assert not any("corner" in note or "less than" in note for note in solve(fit_runs(good), Wish.of(good), 40).notes)


def test_losses_that_are_all_the_same_teach_nothing_and_that_is_said():
    P = np.random.default_rng(0).dirichlet(np.ones(3), 20)
    runs = Runs(GROUPS, ("t",), P, np.full((20, 1), 3.0))
    fit = fit_runs(runs)
    assert any("nothing to learn" in note for note in fit.runs.notes)
    assert any("any mixture is as good" in note for note in solve(fit, Wish.of(runs), 0).notes)
