"""`fedcore site check`: what a site's owner is told before anything runs, without a network."""

import json
import sys
import tomllib

import pytest
import tensorflow as tf  # noqa: F401  where it is loaded, commands run in this process
from click.testing import CliRunner

from fedcore.cli import main
from fedcore.deployment.site_sums import write_key

ROWS = ["age,sex,outcome", "41,f,0", "25,m,1", ",f,1"]
SITE = """
name = "east"
socket = "run/site.sock"
policy = "policy.toml"
key = "key.pem"
peers = "peers.toml"
[data]
file = "table.csv"
missing = "drop"
[data.elements]
x = ["age", "sex"]
y = "outcome"
[data.categories]
sex = ["f", "m"]
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "table.csv").write_text("\n".join(ROWS))
    (tmp_path / "policy.toml").write_text("clients = 2\n")
    (tmp_path / "site.toml").write_text(SITE)
    keys = {"east": write_key(tmp_path / "key.pem"), "north": "0" * 64}
    (tmp_path / "peers.toml").write_text("".join(f'{name} = "{key}"\n' for name, key in keys.items()))
    return tmp_path


def check(folder, *options, code=0):
    """The findings: (part, state, text) of each."""
    arguments = ["site", "check", str(folder / "site.toml"), "--format", "json", *options]
    result = CliRunner().invoke(main, arguments, prog_name="fedcore")
    assert result.exit_code == code, result.output
    return [(f["part"], f["state"], f["text"]) for f in json.loads(result.stdout)]


def wrong(folder, *options):
    return [(part, text) for part, state, text in check(folder, *options, code=1) if state == "wrong"]


def test_a_key_is_read_by_its_owner_alone_also_where_a_file_was(tmp_path):
    (tmp_path / "key.pem").touch(0o644)
    write_key(tmp_path / "key.pem")
    assert (tmp_path / "key.pem").stat().st_mode & 0o777 == 0o600


def test_a_site_that_is_ready_is_told_its_rows_categories_policy_and_keys(folder):
    findings = check(folder, "--element", "<x=float32[?,2],y=int32[?]>".replace("[?,2]", "[2]").replace("[?]", ""))

    texts = [text for _, _, text in findings]
    assert f"2 rows of {folder / 'table.csv'}; 1 with blank cells are left out" in texts
    assert "column sex: f 1, m 1" in texts
    assert any("the data is of type <x=float32[2],y=int32>*: 2" in text for text in texts)
    assert any("clients = 2" in text and "aggregated = true" in text for text in texts)
    assert any(text.endswith("peers: east, north") for text in texts)


def test_blank_cells_are_wrong_with_counts_and_a_fix(folder):
    (folder / "site.toml").write_text(SITE.replace('missing = "drop"\n', ""))

    ((part, text),) = wrong(folder)

    assert part == "data"
    assert text.startswith("columns of the site have blank cells, of 3 rows: age 1\n  fix: ")


def test_texts_are_noted_with_categories_that_work(folder):
    (folder / "site.toml").write_text(SITE.replace('sex = ["f", "m"]\n', ""))
    (note,) = [text for _, state, text in check(folder) if state == "note"]
    assert note.startswith("column sex has 2 different texts; ")

    categories = tomllib.loads(note.partition("[data.categories], ")[2])
    (folder / "site.toml").write_text(SITE.replace('["f", "m"]', json.dumps(categories["sex"])))

    assert "column sex: f 1, m 1" in [text for _, _, text in check(folder)]


def test_cells_that_are_no_category_are_wrong_and_shown(folder):
    (folder / "site.toml").write_text(SITE.replace('["f", "m"]', '["f"]'))

    ((part, text),) = wrong(folder, "--element", "<x=float32[2],y=int32>")

    assert (part, *text.splitlines()) == (
        "data",
        "column sex: 1 of 2 cells are none of data.categories.sex",
        '  fix: add "m" there, at all sites in equal places',
    )


def test_a_column_of_the_policy_that_the_table_lacks_is_noted(folder):
    (folder / "policy.toml").write_text('columns = ["age", "sexx", "outcome"]\n')

    notes = [text for _, state, text in check(folder) if state == "note"]

    assert notes[0] == "columns leaves out sex: plans may not read them"
    assert notes[1].endswith("table.csv has no column sexx; it has 'age', 'sex', 'outcome'")


def test_a_bound_on_epsilon_without_dp_accounting_is_wrong(folder, monkeypatch):
    (folder / "policy.toml").write_text("max_epsilon = 2.0\n")
    monkeypatch.setitem(sys.modules, "dp_accounting", None)

    assert ("policy", "privacy accounting needs dp-accounting: pip install 'fedcore[dp]'") in wrong(folder)


def test_a_site_without_a_key_is_told_how_to_make_one(folder):
    (folder / "key.pem").unlink()
    result = CliRunner().invoke(main, ["site", "check", str(folder / "site.toml")], prog_name="fedcore")

    key = folder / "key.pem"
    assert result.exit_code == 1
    assert f"cannot read {key}: No such file or directory\n  fix: fedcore site key {key} makes a key" in result.output


def test_a_site_that_is_wrong_does_not_start_and_shows_no_values(folder):
    (folder / "site.toml").write_text(SITE.replace('["f", "m"]', '["f"]').replace('"outcome"', '"outcom"', 1))
    result = CliRunner().invoke(main, ["site", str(folder / "site.toml")], prog_name="fedcore")
    assert result.exit_code == 1
    assert "data: " in result.output
    assert "has no column outcom; it has 'age', 'sex', 'outcome'" in result.output

    (folder / "site.toml").write_text(SITE.replace('["f", "m"]', '["f"]'))
    result = CliRunner().invoke(main, ["site", str(folder / "site.toml")], prog_name="fedcore")

    assert result.output.splitlines()[1:] == [
        "  data: column sex: 1 of 2 cells are none of data.categories.sex",
        f"  fix: fedcore site check {folder / 'site.toml'} tells more",
    ]


def test_a_type_that_the_site_does_not_have_is_wrong(folder):
    ((part, text),) = wrong(folder, "--element", "<x=float32[2],z=int32>")

    assert (part, text.splitlines()[0]) == ("data", "the elements of the plan and of the site differ")


def test_a_key_that_is_not_among_the_peers_is_wrong(folder):
    (folder / "peers.toml").write_text(f'east = "{"1" * 64}"\n')

    texts = [text for part, text in wrong(folder) if part == "keys"]

    assert texts[0].startswith("peers has another key for east than that of this site, ")
    assert texts[1] == "peers has 1 sites, and the policy asks for 2 in a sum"


def test_sums_of_fewer_than_all_sites_are_noted(folder):
    (folder / "peers.toml").write_text((folder / "peers.toml").read_text() + f'south = "{"1" * 64}"\n')
    notes = [text for about, state, text in check(folder) if (about, state) == ("keys", "note")]

    assert notes == [
        "peers has 3 sites, and the policy asks for 2 in a sum: two sums that differ by one site show its value; "
        "clients = 3 allows sums of all sites only"
    ]


def test_masked_sums_without_keys_are_wrong(folder):
    (folder / "site.toml").write_text(SITE.replace('key = "key.pem"\npeers = "peers.toml"\n', ""))

    assert ("policy", "aggregated = true needs key and peers in site.toml, for masked sums") in wrong(folder)


def test_a_socket_in_no_folder_is_wrong(folder):
    (folder / "run").rmdir()

    ((part, text),) = wrong(folder)

    assert part == "connection"
    assert "is not there" in text


def test_values_are_shown_without_control_characters(folder):
    (folder / "table.csv").write_text("\n".join([*ROWS, '7,"f\x1b[2J",1']))
    (folder / "site.toml").write_text(SITE.replace('sex = ["f", "m"]\n', ""))

    result = CliRunner().invoke(main, ["site", "check", str(folder / "site.toml")], prog_name="fedcore")

    assert "\x1b" not in result.output


def test_a_bound_of_epsilon_for_plans_that_nobody_has_read_is_wrong(folder):
    (folder / "policy.toml").write_text("max_epsilon = 4.0\n")

    text = "max_epsilon needs digests or signers: a plan that nobody has read trains nothing"
    assert ("policy", text) in wrong(folder)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ('{"x": np.zeros((3, 2)), "y": np.zeros(3, np.int32)}', "data does not fit"),
        ("tf.data.Dataset.from_tensors({'x': np.zeros(2, np.float32), 'y': 0}).repeat()", "data repeats without end"),
    ],
    ids=["float64", "endless"],
)
def test_the_value_of_a_function_is_checked_by_its_type(folder, value, problem):
    (folder / "own.py").write_text(f"import numpy as np\nimport tensorflow as tf\ndef load():\n    return {value}\n")
    (folder / "site.toml").write_text(SITE.partition("[data]")[0] + '[data]\nfunction = "own.py:load"\n')

    ((part, text),) = wrong(folder, "--element", "<x=float32[2],y=int32>")

    assert part == "data"
    assert text.startswith(problem)


def test_a_site_toml_in_another_encoding_is_told(folder):
    (folder / "site.toml").write_bytes(SITE.encode() + "# Ä".encode("latin-1"))

    result = CliRunner().invoke(main, ["site", "check", str(folder / "site.toml")], prog_name="fedcore")

    assert "is no TOML" in result.output
