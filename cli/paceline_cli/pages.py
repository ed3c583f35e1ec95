"""The HTML reports' templates: one page each, that needs no other file."""

from jinja2 import Environment, PackageLoader, StrictUndefined


def rendered(template: str, **values: object) -> str:
    """Fill in a template of this package; raises `UndefinedError` for what was not given."""
    templates = Environment(
        loader=PackageLoader("paceline_cli", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return templates.get_template(template).render(**values)
