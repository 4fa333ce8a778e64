"""Colours for the notation of types and for the text of the IR."""

from pygments.lexer import RegexLexer, words
from pygments.token import Comment, Keyword, Name, Number, Operator, Punctuation, String, Text

from fedcore.types import DTYPES

PLACEMENTS = r"@(?:CLIENTS|SERVER|P)\b"


class NotationLexer(RegexLexer):
    """Types such as `{float32}@CLIENTS`, signatures, and modules of any stage."""

    name = "fedcore"
    aliases = ("fedcore",)
    tokens = {  # noqa: RUF012  pygments reads a plain dict
        "root": [
            (r"//.*$", Comment.Single),
            (r'"(?:\\.|[^"\\])*"', String),
            (PLACEMENTS, Keyword.Constant),
            (r"\b(fn|stage|graph|return|where|at|loc|plan)\b", Keyword),
            (words(sorted(str(dtype) for dtype in DTYPES), prefix=r"\b", suffix=r"\b"), Keyword.Type),
            (r"%[\w.]+", Name.Variable),
            (r"@[\w.]+", Name.Function),
            (r"\b\d[\d.]*\b", Number),
            (r"->|[=:*?]", Operator),
            (r"[{}()<>\[\],|]", Punctuation),
            (r"[^\W\d]\w*", Name),
            (r"\s+|.", Text),
        ]
    }
