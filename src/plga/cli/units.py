"""Numbers for people: three or four digits and a prefix, powers of 1000."""


def counted(count: int, noun: str) -> str:
    """A count with its noun, such as ``1 run`` and ``36 runs``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def readable_bytes(size: int) -> str:
    """A size such as ``229 kB``."""
    if size < 1000:
        return f"{size} B"
    if size < 1_000_000:
        return f"{size / 1000:,.0f} kB"
    return f"{size / 1e6:,.1f} MB" if size < 1_000_000_000 else f"{size / 1e9:,.2f} GB"


def readable_flops(flops: float) -> str:
    """A count such as ``1.23 TFLOP``."""
    prefixes = ["", "k", "M", "G", "T", "P"]
    while flops >= 999.5 and len(prefixes) > 1:
        flops /= 1000
        prefixes.pop(0)
    return f"{flops:,.3g} {prefixes[0]}FLOP"
