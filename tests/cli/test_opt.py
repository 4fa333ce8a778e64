import re
import shlex
import subprocess
import sys

import pytest
from command_line import plain_environment

from fedcore import __version__
from fedcore.compiler import all_passes
from fedcore.ir import bundle, parse_module

LOWERING = "inline,lower-intrinsics,inline,dce"

BAD_PASSES = '''\
import attrs

from fedcore.compiler import compiler_pass

@compiler_pass("crash")
def crash(module, *, hard: bool = False):
    """Fails."""
    raise KeyError("what a pass should not raise")

@compiler_pass("mangle")
def mangle(module):
    """Makes a module that is not valid."""
    return attrs.evolve(module, functions=(attrs.evolve(module.main, operations=()),))
'''


@pytest.fixture
def write_line_7(mean_fed):
    """Replaces line 7 of `mean.fed`."""

    def write(line: str) -> None:
        lines = mean_fed.read_text().split("\n")
        lines[6] = line
        mean_fed.write_text("\n".join(lines))

    return write


def test_without_passes_the_text_comes_back(fedcore, mean_fed):
    ran = fedcore("opt", "mean.fed")
    assert (ran.code, ran.out, ran.err) == (0, mean_fed.read_text(), "")


def test_a_dash_reads_stdin(fedcore, mean_fed):
    ran = fedcore("opt", "-", "-p", "strip-locations", stdin=mean_fed.read_bytes())
    assert ran.code == 0
    assert "loc(" not in ran.out
    assert parse_module(ran.out) == parse_module(mean_fed.read_text())


def test_a_word_that_does_not_parse_is_shown_with_a_caret(fedcore, write_line_7):
    write_line_7("  %3 = struct(%0, %1) ; int32")
    ran = fedcore("opt", "mean.fed")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == (
        "fedcore: mean.fed:7:23: unexpected `;`\n"
        "    %3 = struct(%0, %1) ; int32\n"
        "                        ^\n"
    )  # fmt: skip


def test_a_type_that_does_not_fit_is_shown_with_a_caret(fedcore, write_line_7):
    write_line_7('  %3 = federated_sum(%0) : float32@SERVER   loc("sensors.py":15)')
    ran = fedcore("opt", "mean.fed")
    assert (ran.code, ran.out) == (1, "")
    lines = ran.err.split("\n")
    assert lines[0] == "fedcore: mean.fed: the module is not valid"
    assert lines[1].startswith("mean.fed:7:8: @main: %3 (sensors.py:15): federated_sum: `value` does not fit")
    assert lines[2:4] == ['    %3 = federated_sum(%0) : float32@SERVER   loc("sensors.py":15)', "         ^"]


def test_a_file_that_is_neither_text_nor_a_bundle_is_a_wrong_program(fedcore):
    ran = fedcore("opt", "-", stdin=b"\xff\xfe\x00")
    assert ran.code == 1
    assert ran.err.startswith("fedcore: <stdin>: the file is neither a bundle nor text")


@pytest.mark.parametrize(
    ("passes", "message"),
    [
        ("inline,frob", "no pass is called 'frob'; there are inline, lower-intrinsics,"),
        ("inline{frob=1}", "the pass inline has no option 'frob=1'; it has none"),
        ("inline;dce", "the pipeline 'inline;dce' is not understood"),
    ],
)
def test_a_wrong_pipeline_is_a_usage_error(fedcore, mean_fed, passes, message):
    ran = fedcore("opt", "mean.fed", "-p", passes)
    assert ran.code == 2
    assert message in ran.err


def test_a_missing_file_is_a_usage_error(fedcore):
    assert fedcore("opt", "nothing.fed").code == 2
    assert fedcore("opt").code == 2


def test_list_shows_every_pass_with_its_first_line(fedcore):
    ran = fedcore("opt", "--list")
    assert ran.code == 0
    for one in all_passes():
        assert any(line.startswith(one.name) and line.endswith(one.summary) for line in ran.out.split("\n"))


def test_list_shows_options_with_their_defaults(fedcore, tmp_path):
    (tmp_path / "bad_passes.py").write_text(BAD_PASSES)
    ran = fedcore("opt", "--list", "--load", "bad_passes")
    assert re.search(r"^crash\{hard=false\} +Fails\.$", ran.out, re.MULTILINE)


def test_a_pass_is_imported_when_named_and_leaves_tensorflow_out(python, mean_fed):
    imported = python(
        "import sys, fedcore.cli\n"
        "fedcore.cli.main(['opt', 'mean.fed', '-p', 'inline', '-o', 'out.fed'], standalone_mode=False)\n"
        "print([m for m in ('tensorflow', 'keras', 'rich') if m in sys.modules])\n"
        "print(sorted(m for m in sys.modules if m.startswith('fedcore.compiler.passes.')))"
    )
    assert imported == "[]\n['fedcore.compiler.passes.inline']\n"


def test_print_after_change_shows_only_passes_that_changed_something(fedcore, mean_fed):
    ran = fedcore("opt", "mean.fed", "-p", "inline,dce,dce,strip-locations", "--print-after-change")
    headings = [line.split(":")[0] for line in ran.err.split("\n") if line.startswith("// ")]
    assert headings == ["// after dce", "// after strip-locations"]
    assert parse_module(ran.out).stage == "traced"


def test_print_after_all_says_where_nothing_changed(fedcore, mean_fed):
    ran = fedcore("opt", "mean.fed", "-p", "dce,dce", "--print-after-all")
    headings = [line for line in ran.err.split("\n") if line.startswith("// ")]
    assert headings == ["// after dce: 3 operations, 1 function", "// after dce: no change"]


def test_output_goes_to_a_file_that_reads_back(fedcore, mean_fed, tmp_path):
    ran = fedcore("opt", "mean.fed", "-p", LOWERING, "-o", "lowered.fed")
    assert (ran.code, ran.out) == (0, "")
    assert bundle.read(tmp_path / "lowered.fed").stage == "lowered"


def test_an_output_that_cannot_be_written_is_a_usage_error(fedcore, mean_fed):
    ran = fedcore("opt", "mean.fed", "-o", "no/such/folder/out.fed")
    assert ran.code == 2
    assert "cannot write no/such/folder/out.fed: No such file or directory" in ran.err


@pytest.fixture
def bad_passes(tmp_path):
    (tmp_path / "bad_passes.py").write_text(BAD_PASSES)


def test_a_pass_of_the_user_that_raises_is_named_with_its_line(fedcore, mean_fed, bad_passes, tmp_path):
    ran = fedcore("opt", "mean.fed", "-p", "dce,crash{hard=true},inline", "--load", "bad_passes")
    assert ran.code == 1
    assert ran.err == (
        "fedcore: the pass crash (bad_passes.py:5) raises KeyError: 'what a pass should not raise'\n"
        '  at bad_passes.py:8: raise KeyError("what a pass should not raise")\n'
    )
    assert not [*tmp_path.glob("fedcore-crash-*")]


def test_a_module_that_is_not_valid_after_a_pass_of_the_user_is_told_with_pass_and_line(fedcore, mean_fed, bad_passes):
    ran = fedcore("opt", "mean.fed", "-p", "inline,mangle", "--load", "bad_passes")
    assert ran.code == 1
    assert ran.err.startswith("fedcore: after the pass mangle (bad_passes.py:10): the module is not valid:\n  @")
    assert "which is not bound" in ran.err


BROKEN_FEDCORE = """\
import fedcore.compiler.passes.dce
from fedcore.compiler.pipeline import Pass, _passes

exec(compile({source!r}, fedcore.compiler.passes.dce.__file__, "exec"))
_passes.add(Pass("dce", dce))
"""


@pytest.mark.parametrize(
    ("body", "says", "options"),
    [
        ("raise KeyError('what a pass should not raise')", "KeyError: 'what a pass should not raise'", ""),
        ("import attrs; return attrs.evolve(module, functions=(attrs.evolve(module.main, operations=()),))",
         "InternalError: after the pass dce: the module is not valid:", " --verify-each"),
    ],
)  # fmt: skip
def test_a_failure_of_fedcore_leaves_a_reproducer_whose_command_fails_again(
    fedcore, mean_fed, tmp_path, body, says, options
):
    (tmp_path / "broken.py").write_text(BROKEN_FEDCORE.format(source=f"def dce(module):\n    {body}"))
    ran = fedcore("opt", "mean.fed", "-p", "inline,dce", "--load", "broken", *options.split())
    assert ran.code == 3
    (path,) = tmp_path.glob("fedcore-crash-*.fed")
    assert ran.err == f"fedcore: an error inside fedcore: {says}\n  to reproduce it: {path}\n"
    text = path.read_text()
    command = text.split("\n")[0].removeprefix("// ")
    assert command == f"fedcore opt {path.name} -p dce --load broken{options}"
    assert "// Traceback (most recent call last):\n" in text
    assert f"// fedcore {__version__}, python 3" in text
    assert fedcore(*shlex.split(command)[1:]).code == 3


BAD_PARTS = '''\
from fedcore.compiler.lint import lint_check
from fedcore.graphs.dataflow.stage_passes import stage_pass

@stage_pass("bad-rewrite")
def bad_rewrite(region):
    """Fails."""
    return region.nothing

@lint_check("bad-check")
def bad_check(program):
    """Fails.

    Before:
        x
    After:
        y
    """
    yield program.nothing
'''


@pytest.mark.slow  # imports TensorFlow
@pytest.mark.parametrize(
    ("command", "name", "line"),
    [
        (["opt", "neg.region", "-p", "bad-rewrite"], "the stage pass bad-rewrite (bad_parts.py:4)", 7),
        (["lint", "sums:total"], "the check bad-check (bad_parts.py:9)", 18),
    ],
    ids=["rewrite", "check"],
)
def test_other_parts_of_the_user_that_raise_are_named_with_their_lines(fedcore, tmp_path, command, name, line):
    (tmp_path / "bad_parts.py").write_text(BAD_PARTS)
    (tmp_path / "neg.region").write_text("region(%x: int32[3]) {\n  %0 = Neg(%x) : int32[3]\n  return %0\n}\n")
    (tmp_path / "sums.py").write_text(
        "import fedcore as fc\n\n@fc.federated_computation(fc.types.at_clients('float32'))\n"
        "def total(xs):\n    return fc.federated_sum(xs)\n"
    )
    ran = fedcore(*command, "--load", "bad_parts")
    assert ran.code == 1
    assert ran.err.startswith(f"fedcore: {name} raises AttributeError: ")
    assert f"\n  at bad_parts.py:{line}: " in ran.err


WRONG_PASS = '''\
import attrs

from fedcore.compiler import compiler_pass

@compiler_pass("swap-minus", idempotent=False)
def swap_minus(module):
    """Swaps the operands of differences."""
    def swap(op):
        return attrs.evolve(op, operands=op.operands[::-1]) if op.kind == "generic_minus" else op
    functions = (attrs.evolve(f, operations=tuple(map(swap, f.operations))) for f in module.functions)
    return attrs.evolve(module, functions=tuple(functions))
'''

DIFFERENCES = """\
fedcore 1 traced

fn @away(%x: float32, %c: float32) -> float32 {
  %0 = generic_minus(%x, %c) : float32   loc("sensors.py":12)
  return %0
}

fn @main(%x: float32@SERVER, %c: float32@SERVER) -> float32@SERVER {
  %0 = struct(%x, %c) : <float32@SERVER,float32@SERVER>
  %1 = federated_zip(%0) : <float32,float32>@SERVER
  %2 = federated_map(@away, %1) : float32@SERVER
  return %2
}
"""


@pytest.fixture
def differences(tmp_path):
    (tmp_path / "wrong_pass.py").write_text(WRONG_PASS)
    (tmp_path / "away.fed").write_text(DIFFERENCES)


def test_check_each_names_the_first_pass_that_changes_a_result(fedcore, differences):
    passes = "inline,swap-minus,dce,swap-minus"
    arguments = ["--arg", "1.5", "--arg", "c=1"]
    ran = fedcore("opt", "away.fed", "-p", passes, "--load", "wrong_pass", "--check-each", *arguments)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == (
        "fedcore: the pass swap-minus (wrong_pass.py:5) changes the result: "
        "the result is np.float32(-0.5), not np.float32(0.5)\n"
        "  for the arguments of --arg\n"
        "  what it changed:\n"
        '    -  %0 = generic_minus(%x, %c) : float32   loc("sensors.py":12)\n'
        '    +  %0 = generic_minus(%c, %x) : float32   loc("sensors.py":12)\n'
    )


def test_check_each_generates_arguments(fedcore, mean_fed, differences):
    ran = fedcore("opt", "away.fed", "-p", "swap-minus", "--load", "wrong_pass", "--check-each")
    assert ran.code == 1
    assert "for generated arguments; --arg gives others" in ran.err
    ran = fedcore("opt", "mean.fed", "-p", "default", "--check-each")
    assert ran.code == 0, ran.err
    assert ran.err == "3 results are the same after every pass\n"
    assert parse_module(ran.out).stage == "planned"


def test_a_reader_that_leaves_early_is_no_error(tmp_path):
    """Of the child in which the command runs."""
    body = "".join(f"  %{i} = literal() : int32 {{value={i}}}\n" for i in range(20_000))
    (tmp_path / "long.fed").write_text(f"fedcore 1 traced\n\nfn @main() -> int32 {{\n{body}  return %0\n}}\n")
    command = [sys.executable, "-m", "fedcore", "opt", "long.fed"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=tmp_path, env=plain_environment(), **pipes) as process:
        assert process.stdout.readline() == b"fedcore 1 traced\n"
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


OWN_PASS = '''\
import attrs

from fedcore.compiler import compiler_pass

@compiler_pass("mark")
def mark(module, *, text: str = "seen"):
    """Names the main function."""
    main = attrs.evolve(module.main, name=text)
    return attrs.evolve(module, functions=(*module.functions[:-1], main))
'''


@pytest.mark.parametrize("command", [["opt", "mean.fed"], ["dump", "mean.fed", "--stage", "planned"]])
def test_a_pass_of_ones_own_runs_after_the_default_pipeline(fedcore, mean_fed, tmp_path, command):
    (tmp_path / "own_pass.py").write_text(OWN_PASS)
    ran = fedcore(*command, "-p", "default, mark{text=here}", "--load", "own_pass")
    assert ran.code == 0, ran.err
    module = parse_module(ran.out)
    assert module.stage == "planned"
    assert module.main.name == "here"


def test_after_prints_what_a_pass_of_ones_own_left(fedcore, mean_fed, tmp_path):
    (tmp_path / "own_pass.py").write_text(OWN_PASS)
    ran = fedcore("dump", "mean.fed", "-p", "lowering,mark,planning", "--load", "own_pass", "--after", "mark")
    assert parse_module(ran.out).stage == "lowered"
    assert parse_module(ran.out).main.name == "seen"
    unknown = fedcore("dump", "mean.fed", "-p", "default,mark")
    assert unknown.code == 2
    assert "no pass is called 'mark'; there are " in unknown.err


@pytest.mark.usefixtures("mean_fed")
def test_a_target_is_pinned_on_the_command_line(fedcore):
    passes, target = "inline,lower-intrinsics,inline,dce,partition,plan", "avx2/small-l2/slow-memory/no-gpu"
    planned = fedcore("opt", "mean.fed", "-p", passes, "--target", target)
    assert planned.code == 0, planned.err
    assert f'{{target="{target}"}}' in planned.out
    dumped = fedcore("dump", "mean.fed", "--stage", "planned", "--target", target)
    assert f'{{target="{target}"}}' in dumped.out
    refused = fedcore("dump", "mean.fed", "--target", "fast")
    assert refused.code == 2
    assert "Invalid value for --target: a target is avx512|avx2" in refused.err
