"""How figures are worded in a diagnosis."""

_WHOLE_FROM_MS = 10.0


def ms(value: float) -> str:
    """Milliseconds with as many digits as count."""
    return f"{value:,.0f} ms" if value >= _WHOLE_FROM_MS else f"{value:.2f} ms"
