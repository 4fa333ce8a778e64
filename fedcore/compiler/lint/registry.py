"""Registry of the linter's checks.

Decision 0262.
"""

import linecache
import re
from collections.abc import Callable, Iterable

import attrs

from fedcore.compiler.lint.program import Program
from fedcore.errors import Location
from fedcore.ir import Module
from fedcore.ir.locations import naming_errors_of
from fedcore.ir.part_registry import Part, PartRegistry

# Built-in checks are imported when they are named; a third party's check registers when its module is imported.
BUILT_IN = ("sent-twice", "sent-every-round", "unaggregated", "constant-seed", "lossy-cast", "client-loop")


@attrs.frozen
class Finding:
    """A line of a program that should be another.

    Args:
        problem: in the user's names, without a full stop.
        fix: what to write in its place.
        location: the line; None where the module has no lines.
        check: the name of the check; `lint` fills it in.
    """

    problem: str
    fix: str
    location: Location | None = None
    check: str = ""

    def __str__(self) -> str:
        source = _source_line(self.location)
        excerpt = f"\n  {source}" if source else ""
        return f"{self.location or '<no line>'}: {self.check}: {self.problem}{excerpt}\n  fix: {self.fix}"


class LintCheck(Part):
    """A named function that finds the lines of one kind of mistake."""


_checks: PartRegistry[LintCheck] = PartRegistry("check", "fedcore.compiler.lint", BUILT_IN, decides_results=False)
get_check, all_checks = _checks.get, _checks.all


def lint_check(name: str) -> Callable[[Callable], Callable]:
    """Registers a check; `fedcore lint` runs it.

    The decorated function takes a `Program` and yields a `Finding` for each line. Its docstring shows a program before
    and after the fix.

    Raises:
        FedcoreError: the name is not of letters, digits, `_` and `-`.
    """
    _checks.check_name(name)

    def register(function: Callable) -> Callable:
        _checks.add(LintCheck(name, function))
        return function

    return register


def lint(module: Module, *, without: Iterable[str] = ()) -> list[Finding]:
    """The findings of all checks in a traced or lowered module, in order of lines, each once.

    A line whose source has the comment `# lint: allow NAME` keeps the findings of that check out.

    Args:
        without: names of checks that do not run.
    Raises:
        FedcoreError: a third party's check raises: the message names it with file and line.
        InvalidValue: the module is planned, where the lines of fused graphs are gone; or no check has such a name.
    """
    skipped = {get_check(name).name for name in without}
    program = Program(module)
    findings: dict[Finding, None] = {}
    for check in all_checks():
        if check.name not in skipped:
            with naming_errors_of(f"the check {check.name}", check.run):
                findings |= dict.fromkeys(attrs.evolve(finding, check=check.name) for finding in check.run(program))
    return sorted((f for f in findings if not _is_allowed(f)), key=_position)


def _position(finding: Finding) -> tuple[str, int]:
    """The file and the line, by which findings are sorted."""
    location = finding.location
    return ("", 0) if location is None else (location.file, location.line)


def _is_allowed(finding: Finding) -> bool:
    """Whether a comment of the source line allows findings of the check."""
    comment = re.search(r"#\s*lint:\s*allow\s+([\w\-, ]+)", _source_line(finding.location))
    return comment is not None and finding.check in re.split(r"[\s,]+", comment[1])


def _source_line(location: Location | None) -> str:
    """The line as its file has it; empty for lines that another process traced."""
    return "" if location is None or location.path is None else linecache.getline(location.path, location.line).strip()
