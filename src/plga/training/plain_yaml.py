"""YAML as people mean it: the core schema of YAML 1.2, no key twice, and every error one ValueError."""

import re
from typing import Any

import yaml


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader without what YAML 1.1 reads into plain text.

    There ``0100`` is 64, ``1:30`` is 90, ``yes`` is true, ``2024-01-01`` a date and ``1e-3`` text.
    """

    yaml_implicit_resolvers: dict[str, Any] = {}

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.deep_construct = True  # so that an alias inside of what it names is an error and no endless value

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = (key_node.tag, key_node.value) if isinstance(key_node, yaml.ScalarNode) else None
            if key in seen and key_node.tag != "tag:yaml.org,2002:merge":
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key_node.value!r} stands twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def _construct_int(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    text = loader.construct_scalar(node)
    return int(text, 0) if text[:2] in ("0x", "0o") else int(text)


def _construct_float(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> float:
    return float(loader.construct_scalar(node).lower().replace(".inf", "inf").replace(".nan", "nan"))


for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    # "inf" and "nan" without the point are no numbers in YAML, but nobody means text by them.
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.?(inf|Inf|INF)|\.?(nan|NaN|NAN)",
        "-+.0123456789iInN",
    ),
    ("merge", r"<<", "<"),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})\Z"), list(_first))
_Loader.add_constructor("tag:yaml.org,2002:int", _construct_int)
_Loader.add_constructor("tag:yaml.org,2002:float", _construct_float)


def parse(text: str) -> Any:
    """The value that a YAML document spells, as plain data.

    Raises:
        ValueError: not YAML, a key that stands twice, an alias inside of what it names, or nested too deep; one line.
    """
    try:
        loader = _Loader(text)
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except RecursionError:
        raise ValueError("nested too deep") from None
    except (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError) as error:
        # What a tag such as !!bool finds in its text comes as whatever Python made of it.
        reason = (
            " ".join(str(error).split()) if isinstance(error, yaml.YAMLError | ValueError) else "a tag over other text"
        )
        raise ValueError(reason) from error
