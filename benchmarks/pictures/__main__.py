"""Redraw the pictures from committed results: PYTHONPATH=benchmarks python -m pictures."""

from pictures.makers import DRAWN_BY_THEIR_RUN, ROOT, redraw


def main() -> None:
    """Redraw, and name the pictures that only their run can draw."""
    for name in redraw(ROOT):
        print(f"redrawn: {name}")
    for name, command in DRAWN_BY_THEIR_RUN.items():
        print(f"left as it is: {name}, which is drawn by `{command}`")


if __name__ == "__main__":
    main()
