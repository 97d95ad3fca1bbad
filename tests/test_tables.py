"""Tables of runs are read as people write them, and refused by row and column where they cannot be."""

import gzip

import numpy as np
import pytest
from test_fits import GROUPS, world

from aioli.fits import fit_runs, read_mixtures, read_runs


def write(path, header, rows):
    path.write_text("\n".join([",".join(header), *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


@pytest.fixture
def one(tmp_path):
    _, P, L = world()
    header = ["run", *(f"p_{g}" for g in GROUPS), *(f"loss_{g}" for g in GROUPS)]
    return write(tmp_path / "runs.csv", header, [(k, *p, *v) for k, (p, v) in enumerate(zip(P, L, strict=True))])


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
