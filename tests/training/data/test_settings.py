"""Settings of data: what goes together, and one line for what does not."""

from typing import Any

import pytest

from plga.training.data.settings import DataSettings


def test_the_defaults_need_nothing() -> None:
    settings = DataSettings.checked({}, "data")
    assert (settings.source, settings.packing, settings.validation) == ("standard-library", "packed", 0.05)


def test_the_published_corpus() -> None:
    published = {"source": "hub", "path": "tiiuae/falcon-refinedweb", "column": "content", "tokenizer": "tokenizer"}
    assert DataSettings.checked(published, "data").split == "train"


FILES = {"source": "jsonl", "path": ["a", "b"], "tokenizer": "t"}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"source": "csv"}, "source is 'csv', expected 'standard-library', 'text', 'jsonl', 'parquet' or 'hub'"),
        ({"source": "text"}, "path is missing: source 'text' needs files or globs"),
        ({"source": "hub", "path": ""}, "path is missing: source 'hub' needs a dataset's name or folder"),
        ({**FILES, "path": []}, "path is missing: source 'jsonl' needs files or globs"),
        ({**FILES, "tokenizer": None}, "tokenizer is missing: source 'jsonl' needs one (a folder, a file or a name"),
        ({**FILES, "source": "hub"}, "path is ['a', 'b'], expected one name or folder with source 'hub'"),
        ({**FILES, "name": "en"}, "name is 'en', but only source 'hub' has one"),
        ({"path": "a"}, "path is 'a', but source 'standard-library' has none; set source"),
        ({"packing": "padded"}, "packing is 'padded', expected 'packed' with source 'standard-library'"),
        ({"validation": 0}, "validation is 0, expected greater than 0"),
        ({"validation": 0.6}, "validation is 0.6, expected less than or equal to 0.5"),
        ({"bad_rows": -1}, "bad_rows is -1, expected greater than or equal to 0"),
        ({"column": ""}, "column is ''"),
        ({"shuffle": True}, "shuffle is not a setting, expected one of source, path"),
    ],
)
def test_what_does_not_go_together(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as error:
        DataSettings.checked(values, "config.yaml")
    assert str(error.value).startswith(f"config.yaml: {message}")
    assert "\n" not in str(error.value)
