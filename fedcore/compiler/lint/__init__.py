"""The linter of programs: findings that a compiler can compile, and that cost bits, time, privacy or precision.

A check is a function of a `Program` in a file of its own, registered by `@lint_check`.

Decision 0262.
"""

from fedcore.compiler.lint.program import Program
from fedcore.compiler.lint.registry import Finding, LintCheck, all_checks, get_check, lint, lint_check

__all__ = ["Finding", "LintCheck", "Program", "all_checks", "get_check", "lint", "lint_check"]
