"""Tables of runs: read as people write them, fitted, measured on what was held out, and solved."""

import gzip
import json

import numpy as np
import pytest

from aioli.fits import Fit, Runs, Wish, caps_from_tokens, fit_runs, read_mixtures, read_runs, solve
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


def write(path, header, rows):
    path.write_text("\n".join([",".join(header), *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


@pytest.fixture
def one(tmp_path):
    _, P, L = world()
    header = ["run", *(f"p_{g}" for g in GROUPS), *(f"loss_{g}" for g in GROUPS)]
    return write(tmp_path / "runs.csv", header, [(k, *p, *v) for k, (p, v) in enumerate(zip(P, L, strict=True))])


# ---------------------------------------------------------------- reading


def test_one_table_is_read_by_patterns(one):
    runs = read_runs([one], "p_*", "loss_*")
    _, P, L = world()
    assert runs.groups == runs.targets == GROUPS
    np.testing.assert_allclose(runs.P, P)
    np.testing.assert_allclose(runs.L, L)


@pytest.mark.parametrize("form", ["parquet", "tsv", "csv.gz", "semicolons"])
def test_other_formats(one, tmp_path, form):
    text = one.read_text()
    if form == "parquet":
        import pyarrow.csv
        import pyarrow.parquet

        path = tmp_path / "runs.parquet"
        pyarrow.parquet.write_table(pyarrow.csv.read_csv(one), path)
    elif form == "csv.gz":
        path = tmp_path / "runs.csv.gz"
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path = tmp_path / ("runs.tsv" if form == "tsv" else "other.csv")
        path.write_text("\ufeff" + text.replace(",", "\t" if form == "tsv" else ";"))
    runs = read_runs([path], "p_*", "loss_*")
    np.testing.assert_allclose(runs.L, read_runs([one], "p_*", "loss_*").L)


def test_two_tables_are_joined_by_what_they_share(tmp_path):
    _, P, L = world(10)
    mixtures = write(tmp_path / "mix.csv", ["index", *GROUPS], [(k + 1, *p) for k, p in enumerate(P)])
    order = [3, 1, 2, 7, 9, 0]
    losses = write(tmp_path / "loss.csv", ["index", "law", "medicine"], [(f"{k + 1}.0", *L[k, :2]) for k in order])
    runs = read_runs([mixtures, losses])
    assert runs.targets == ("law", "medicine")
    np.testing.assert_allclose(runs.P, P[order])
    np.testing.assert_allclose(runs.L, L[order, :2])
    assert "4 rows of mix.csv have no partner by index and are left out" in runs.notes
    assert any("losses: law, medicine" in note for note in runs.notes)


def test_ids_are_compared_as_they_are_written(tmp_path):
    _, P, L = world(6)
    base = 1234567890123456000
    mixtures = write(tmp_path / "mix.csv", ["run", *GROUPS], [(base + k, *p) for k, p in enumerate(P)])
    losses = write(tmp_path / "loss.csv", ["run", "x"], [(base + 1000 + k, v[0]) for k, v in enumerate(L)])
    with pytest.raises(ValueError, match=r"no run of loss.csv occurs"):
        read_runs([mixtures, losses])
    mixtures = write(tmp_path / "mix.csv", ["run", *GROUPS], [(f"00{k}", *p) for k, p in enumerate(P)])
    losses = write(tmp_path / "loss.csv", ["run", "x"], [(k or "", v[0]) for k, v in enumerate(L)])
    with pytest.raises(ValueError, match=r"no run of loss.csv occurs"):
        read_runs([mixtures, losses])


def test_columns_that_are_no_losses_are_left_alone(tmp_path):
    _, P, L = world(6)
    mixtures = write(tmp_path / "mix.csv", ["run", *GROUPS], [(k, *p) for k, p in enumerate(P)])
    rows = [(k, 0, 30000, v[0]) for k, v in enumerate(L)]
    losses = write(tmp_path / "loss.csv", ["run", "seed", "step", "x"], rows)
    assert read_runs([mixtures, losses]).targets == ("x",)


def test_row_numbers_are_those_of_the_file(tmp_path):
    rows = [(0.5, 0.5, k % 2, 1.0) for k in range(9)] + [(0.5, 0.9, 1, 1.0)]
    path = write(tmp_path / "r.csv", ["a", "b", "step", "loss"], rows)
    with pytest.raises(ValueError, match="row 10, line 11"):
        read_runs([path], "a,b", "loss", where={"step": "1"})


def test_a_row_for_each_run_and_target(tmp_path):
    rows = []
    for k, (p, v) in enumerate(zip(*world(6)[1:], strict=True)):
        for step in (10, 20):
            rows += [(f"r{k}", *p, step, target, v[i] + 1 / step) for i, target in enumerate(GROUPS)]
    rows += [("other", "", "", "", 20, "code", 3.0)]
    path = write(tmp_path / "long.csv", ["run", "p1", "p2", "p3", "step", "domain", "loss"], rows)
    runs = read_runs([path], "p1,p2,p3", "loss", targets_in="domain", where={"step": "20"})
    np.testing.assert_allclose(runs.L, world(6)[2] + 0.05)
    assert runs.notes == ("1 rows without proportions are left out",)
    with pytest.raises(ValueError, match="second loss for code"):
        read_runs([path], "p1,p2,p3", "loss", targets_in="domain")


def test_rounded_rows_are_made_good_and_counted(tmp_path):
    rows = [(0.333, 0.333, 0.333, 1), (0.5, 0.25, 0.25, 2), (0.998, 0.001, 0.002, 3), (0.67, 0.33, 0.01, 4)]
    runs = read_runs([write(tmp_path / "r.csv", ["a", "b", "c", "loss"], rows)], "a,b,c", "loss")
    assert runs.renormalised == 3
    np.testing.assert_allclose(runs.P.sum(1), 1.0)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("0.5,0.6,0.1,1", r"row 2, line 4 of r.csv: its shares sum to 1.2, not 1"),
        ("50,30,20,1", "divide by 100"),
        ("0.5,-0.1,0.6,1", "the share b is -0.1"),
        ("0.5,,0.5,1", "the share b is nan"),
        ("0.5,many,0.5,1", "b is 'many', which is not a number"),
        ("0.5,0.2,0.3,inf", "leave the cell empty if the run diverged"),
        ("0.5,0.2,0.3", "3 cells where the header has 4"),
    ],
)
def test_bad_rows_are_refused_by_number(tmp_path, row, words):
    path = tmp_path / "r.csv"
    path.write_text(f"a,b,c,loss\n0.2,0.3,0.5,1\n\n{row}\n")  # an empty line counts as a line, not as a row
    with pytest.raises(ValueError, match=words):
        read_runs([path], "a,b,c", "loss")


def test_bad_tables_are_refused(one, tmp_path):
    with pytest.raises(ValueError, match="no such file"):
        read_runs([tmp_path / "none.csv"], "p_*", "loss_*")
    with pytest.raises(ValueError, match="say which columns"):
        read_runs([one])
    with pytest.raises(ValueError, match="matches no column"):
        read_runs([one], "q_*", "loss_*")
    with pytest.raises(ValueError, match="no such column"):
        read_runs([one], "p_*", "loss_*", where={"step": "1"})
    with pytest.raises(ValueError, match="in common"):
        read_runs([one, write(tmp_path / "b.csv", ["x"], [(1,)])])
    with pytest.raises(ValueError, match="not a table"):
        read_runs([write(tmp_path / "a.xlsx", ["x"], [])], "p_*", "loss_*")
    with pytest.raises(ValueError, match="stands there twice"):
        read_runs([write(tmp_path / "c.csv", ["run", "a"], [(1, 1), (1, 1)]), one], "a", "loss_*")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(ValueError, match="not a Parquet file"):
        read_runs([tmp_path / "bad.parquet"], "p_*", "loss_*")
    (tmp_path / "bad.csv.gz").write_bytes(b"\x1f\x8b nothing")
    with pytest.raises(ValueError, match="cannot be read"):
        read_runs([tmp_path / "bad.csv.gz"], "p_*", "loss_*")
    with pytest.raises(ValueError, match="two columns named 'x'"):
        read_runs([write(tmp_path / "d.csv", ["x", "x"], [(1, 1)])], "x", "x")


def test_missing_losses_drop_that_target_only(one):
    lines = one.read_text().splitlines()
    for k in (3, 4, 5):
        cells = lines[k].split(",")
        cells[4] = ["", "NA", "nan"][k - 3]
        lines[k] = ",".join(cells)
    one.write_text("\n".join(lines))
    runs = read_runs([one], "p_*", "loss_*")
    assert runs.missing == 3
    fit = fit_runs(runs)
    assert fit.scores.runs.tolist() == [37, 40, 40]
    assert fit.scores.r2.min() > 0.95


def test_mixtures_are_found_by_group(one):
    runs = read_runs([one], "p_*", "loss_*")
    P, rounded = read_mixtures(one, GROUPS, columns=runs.columns)
    np.testing.assert_allclose(P, world()[1])
    assert rounded == 0
    np.testing.assert_allclose(read_mixtures(one, GROUPS, "p_*")[0], P)
    with pytest.raises(ValueError, match="no column for group"):  # p_code or loss_code?
        read_mixtures(one, GROUPS)
    with pytest.raises(ValueError, match="no column for group 'maths'"):
        read_mixtures(one, (*GROUPS, "maths"), "p_*")


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
    good = json.loads(path.read_text())
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
