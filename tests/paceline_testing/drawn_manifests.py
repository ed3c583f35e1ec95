"""Hypothesis strategies: InferenceServices drawn from the schema that the cluster has."""

from typing import Any

from hypothesis import strategies as st

from paceline_api.labels import Manifest
from paceline_api.schema import resource_schema
from paceline_testing.services import a_manifest

_LONGEST = 64
# What the pattern alone would hardly hit, and what a person would write.
_SENSIBLE = {
    "uri": ["builtin://smollm2-135m-instruct", "pvc://models/llama", "file:///models/llama"],
    "p99": ["1ms", "50ms", "500ms", "2s"],
    "share": ["0.1", "0.5", "0.8"],
}


def manifests() -> st.SearchStrategy[Manifest]:
    """Draw any spec that the structural schema allows; its CEL rules may refuse it."""
    spec = _values(resource_schema()["properties"]["spec"], "spec")
    return spec.map(lambda drawn: a_manifest() | {"spec": a_manifest()["spec"] | drawn})


def _values(schema: dict[str, Any], name: str) -> st.SearchStrategy[Any]:
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if schema.get("x-kubernetes-int-or-string"):
        text = _texts(schema, name) if "pattern" in schema else st.sampled_from(["1", "25%", "1Gi"])
        return st.integers(0, 4) | text
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return st.just({})
    if schema.get("type") == "object":
        return _objects(schema)
    if schema.get("type") == "array":
        most = min(2, schema.get("maxItems", 2))
        return st.lists(_values(schema["items"], name), max_size=most)
    return _scalars(schema, name)


def _scalars(schema: dict[str, Any], name: str) -> st.SearchStrategy[Any]:
    if schema["type"] == "boolean":
        return st.booleans()
    if schema["type"] == "integer":
        least, most = schema.get("minimum", 0), schema.get("maximum", 2**31 - 1)
        return st.sampled_from(sorted({least, min(least + 1, most), min(64, most), most}))
    return _texts(schema, name)


def _objects(schema: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Leave most optional fields out: the more there are, the likelier a rule refuses them."""
    if "properties" not in schema:
        values = _values(schema.get("additionalProperties", {"type": "string"}), "")
        return st.dictionaries(st.sampled_from(["team", "zone"]), values, max_size=2)
    properties, required = schema["properties"], {*schema.get("required", ())}
    optional = sorted({*properties} - required)
    fields = {name: _values(inner, name) for name, inner in properties.items()}
    chosen = (
        st.lists(st.sampled_from(optional), max_size=3, unique=True) if optional else st.just([])
    )
    return chosen.flatmap(
        lambda names: st.fixed_dictionaries({name: fields[name] for name in (*required, *names)})
    )


def _texts(schema: dict[str, Any], name: str) -> st.SearchStrategy[str]:
    if name in _SENSIBLE:
        return st.sampled_from(_SENSIBLE[name])
    longest = min(schema.get("maxLength", _LONGEST), _LONGEST)
    if pattern := schema.get("pattern"):
        drawn = st.from_regex(pattern.replace("$", r"\Z"), alphabet=st.characters(codec="ascii"))
        return drawn.filter(lambda text: len(text) <= longest)
    return st.text("abc-. 1", min_size=schema.get("minLength", 0), max_size=min(longest, 12))
