"""Quantities as text with a unit."""


def seconds(value: float) -> str:
    """A time in µs, ms or s; a dash for none."""
    if value <= 0:
        return "–"
    if value < 0.001:
        return f"{value * 1e6:.0f} µs"
    if value < 1:
        return f"{value * 1e3:.1f} ms" if value < 0.01 else f"{value * 1e3:.0f} ms"
    return f"{value:.2f} s"


def data_size(size_bytes: int) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= size:
            return f"{size_bytes / size:.2f} {unit}"
    return f"{size_bytes} B"


def bits(value: int | None) -> str:
    """A number of bits; `?` if it is not known."""
    if value is None:
        return "?"
    for unit, size in (("Gibit", 2**30), ("Mibit", 2**20), ("Kibit", 2**10)):
        if value >= size:
            return f"{value / size:.2f} {unit}"
    return f"{value} bit"
