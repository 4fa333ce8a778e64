"""The compiler: passes from traced modules to plans."""

from fedcore.compiler.pipeline import (
    DEFAULT_PIPELINE,
    LOWERING,
    PLANNING,
    all_passes,
    compile_module,
    compiler_pass,
    get_pass,
    parse_pipeline,
    pipeline_with,
    run_pass,
    run_passes,
)

__all__ = [
    "DEFAULT_PIPELINE",
    "LOWERING",
    "PLANNING",
    "all_passes",
    "compile_module",
    "compiler_pass",
    "get_pass",
    "parse_pipeline",
    "pipeline_with",
    "run_pass",
    "run_passes",
]
