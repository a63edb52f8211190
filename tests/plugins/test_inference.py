"""`method` left out: it follows from `model`, or the error says why not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from outrider.api import ConfigError
from outrider.config import SpeculativeConfig
from outrider.plugins.inference import infer_method


@pytest.fixture(autouse=True)
def _echo(fake_site):
    fake_site.proposer("echo")


def infer(**speculative: Any) -> Any:
    return infer_method(SpeculativeConfig(**speculative))


def refusal(**speculative: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        infer(**speculative)
    return str(caught.value)


@pytest.fixture
def checkpoint(tmp_path):
    def write(config: object) -> str:
        (tmp_path / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
        return str(tmp_path)

    return write


def test_a_given_method_stays_and_keeps_its_model():
    assert infer(method="anything", model="some/checkpoint") == ("anything", "some/checkpoint")
    assert infer(method=dict) == (dict, None)


@pytest.mark.parametrize("model", ["echo", "pkg.mod:Class", "pkg.mod.Class", "./x.py:Class", "x.py"])
def test_a_name_or_path_is_the_method_and_no_model_is_left(model):
    assert infer(model=model) == (model, None)


def test_custom_class_takes_the_path_from_model():
    assert infer(method="custom_class", model="pkg.mod.Class") == ("pkg.mod.Class", None)
    assert "needs model='package.module:Class'" in refusal(method="custom_class")


def test_a_speculators_checkpoint_names_its_algorithm(checkpoint):
    folder = checkpoint({"model_type": "whatever", "speculators_config": {"algorithm": "neverheardof"}})
    assert infer(model=folder) == ("neverheardof", folder)


def test_a_model_type_that_is_an_installed_proposer(checkpoint):
    folder = checkpoint({"model_type": "echo"})
    assert infer(model=folder) == ("echo", folder)


def test_a_folder_wins_over_a_dotted_path(tmp_path, monkeypatch, checkpoint):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.model").mkdir()
    (tmp_path / "my.model" / "config.json").write_text('{"model_type": "echo"}')
    assert infer(model="my.model") == ("echo", "my.model")


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"model_type": "llama"}, "model_type='llama' is no installed proposer"),
        ({}, "model_type=None is no installed proposer"),
        ({"speculators_config": {"algorithm": 3}}, "no speculators_config.algorithm"),
        ([1], "no speculators_config.algorithm"),
        ("{", "its config.json cannot be read"),
    ],
)
def test_a_checkpoint_that_does_not_tell(checkpoint, config, reason):
    message = refusal(model=checkpoint(config))
    assert reason in message
    assert "give a `method` (installed: " in message
    assert "echo" in message


def test_a_folder_without_config(tmp_path):
    assert "its config.json cannot be read" in refusal(model=str(tmp_path))


def test_a_hub_id_does_not_tell():
    message = refusal(model="someone/echo-1.5b")
    assert "model='someone/echo-1.5b' does not tell it" in message


def test_a_misspelt_name_tells_the_nearest():
    assert "did you mean 'echo'?" in refusal(model="ehco")
