"""How the numbers of docs/performance.md are shown."""


def times(value: float) -> str:
    """`4.2 ×`: how many times as fast, or as long."""
    return f"{value:.2g} ×" if value < 10 else f"{value:,.0f} ×"


def times_precisely(value: float) -> str:
    """The same, of a number near 1."""
    return f"{value:.2f} ×"


def seconds(value: float) -> str:
    """In milliseconds below a second."""
    return f"{value:.2f} s" if value >= 1 else f"{1000 * value:.2g} ms" if value < 0.1 else f"{1000 * value:.0f} ms"


def percent(value: float) -> str:
    """A share, as whole percent; with a digit more below one."""
    return f"{100 * value:.0f} %" if value >= 0.01 else f"{100 * value:.1f} %"


def millions(value: float) -> str:
    """A large number of tokens."""
    return f"{value / 1e6:.0f} million"


def whole(value: float) -> str:
    """A count."""
    return f"{value:.0f}"


def power(value: float) -> str:
    """The power of a power law; not below 0 by rounding."""
    return f"{max(0.0, value):.2f}" if value > -0.005 else f"−{-value:.2f}"
