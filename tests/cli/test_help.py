import pytest

from fedcore.cli import main
from fedcore.cli.exit_codes import EXIT_CODES


def test_help_documents_every_exit_code(fedcore):
    ran = fedcore("--help")
    assert ran.code == 0
    for code, meaning in EXIT_CODES.items():
        assert f"{code:<4}{meaning}" in ran.out


@pytest.mark.parametrize("verb", sorted(main.commands))
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


def test_an_unknown_verb_is_a_usage_error(fedcore):
    ran = fedcore("frobnicate")
    assert ran.code == 2
    assert "No such command 'frobnicate'" in ran.err
