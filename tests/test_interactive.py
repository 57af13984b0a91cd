"""What a person at a prompt sees: help, tab completion, reprs."""

import numpy as np

import mmapdict


def test_dir_shows_the_public_names():
    assert [name for name in dir(mmapdict) if not name.startswith("__")] == sorted(mmapdict.__all__)
    assert all(hasattr(mmapdict, name) for name in dir(mmapdict))


def test_the_help_begins_with_an_example_and_names_what_is_public():
    text = mmapdict.__doc__.split("Reading the source")[0]
    assert ">>> with mmapdict.open(" in text
    for name in mmapdict.__all__:
        assert f"`{name}`" in text, name


def test_keys_show_the_first_ten_and_no_values(tmp_path):
    with mmapdict.open(tmp_path / "a", "x") as d:
        keys = d.keys()
        assert repr(keys) == "Keys([])"
        d["a"] = np.zeros(3)
        d["b", 1] = 2
        assert repr(keys) == "Keys(['a', ('b', 1)])"
        d.update((i, i) for i in range(10))
        assert repr(keys) == "Keys(['a', ('b', 1), 0, 1, 2, 3, 4, 5, 6, 7, ... 2 more])"
    assert "closed" in repr(keys)


def test_completion_of_keys(tmp_path):
    with mmapdict.open(tmp_path / "a", "x") as d:
        d.update({"a": 1, 2: 2, ("b", 1): 3, b"c": 4, "d": 5})
        assert d._ipython_key_completions_() == ["a", "d"]
