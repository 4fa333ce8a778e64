import pytest
from click.testing import CliRunner

from fedcore.cli import main
from fedcore.cli.exit_codes import EXIT_CODES
from fedcore.cli.verbs import SUMMARIES


def test_help_documents_every_exit_code(fedcore):
    ran = fedcore("--help")
    assert ran.code == 0
    for code, meaning in EXIT_CODES.items():
        assert f"{code:<4}{meaning}" in ran.out


@pytest.mark.parametrize("verb", SUMMARIES)
def test_help_of_every_verb_has_an_example(fedcore, verb):
    ran = fedcore(verb, "--help")
    assert ran.code == 0
    assert "Examples:" in ran.out
    assert f"\n    fedcore {verb} " in ran.out


def test_help_imports_neither_the_compiler_nor_tensorflow(python):
    imported = python(
        "import sys, fedcore.cli\n"
        "fedcore.cli.main(['--help'], standalone_mode=False)\n"
        "heavy = ('tensorflow', 'keras', 'rich', 'lark', 'fedcore.compiler')\n"
        "print('imported', [m for m in heavy if m in sys.modules])"
    )
    assert imported.endswith("imported []\n")


def test_a_package_adds_verbs_by_an_entry_point(tmp_path, monkeypatch):
    (tmp_path / "counting.py").write_text(
        "import click\n\n@click.command(short_help='Counts words.')\ndef count():\n    click.echo('counted')\n"
        "\n@click.command(hidden=True)\ndef secret():\n    click.echo('hidden')\n"
    )
    (tmp_path / "counting-1.dist-info").mkdir()
    (tmp_path / "counting-1.dist-info" / "METADATA").write_text("Name: counting\nVersion: 1\n")
    (tmp_path / "counting-1.dist-info" / "entry_points.txt").write_text(
        "[fedcore.commands]\ncount = counting:count\nsecret = counting:secret\nbroken = no_such_module:count\n"
        "odd = counting:click\nrun = counting:count\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    def fedcore(*arguments):
        return CliRunner().invoke(main, arguments)

    assert "Counts words." in fedcore("--help").output
    assert "secret" not in fedcore("--help").output
    assert fedcore("secret").output == "hidden\n"
    assert fedcore("count").output == "counted\n"
    broken = fedcore("broken", "--x", "file")
    assert broken.exit_code == 1
    problem = "the entry point broken = no_such_module:count of fedcore.commands does not load: ModuleNotFoundError"
    assert problem in broken.output
    assert "odd = counting:click of fedcore.commands is no click.Command" in fedcore("odd").output
    assert fedcore("run", "--help").output.startswith("Usage: main run ")  # fedcore's own verbs stay


def test_an_unknown_verb_is_a_usage_error(fedcore):
    ran = fedcore("frobnicate")
    assert ran.code == 2
    assert "No such command 'frobnicate'" in ran.err
