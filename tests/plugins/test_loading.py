"""From a configuration's words to a plugin class; every way to fail has a message of its own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from outrider import hookimpl
from outrider.api import PluginError
from outrider.plugins.discovery import Kind
from outrider.plugins.loading import find

LOCAL = """
from __future__ import annotations

from outrider import hookimpl
from outrider.api import DraftTokens
from pydantic import BaseModel

class Size(BaseModel):
    value: int = 1

class Local:
    outrider_api = 1

    class Options(BaseModel):
        size: Size = Size()  # resolved through sys.modules

    def __init__(self, options):
        self.options = options

    @hookimpl
    def propose(self, context):
        return DraftTokens(token_ids=[])
"""


class Given:
    outrider_api = 1

    @hookimpl
    def propose(self, context: Any) -> Any:
        return None


def refusal(kind: Kind, reference: str | type[Any]) -> str:
    with pytest.raises(PluginError) as caught:
        find(kind, reference)
    return str(caught.value)


def test_an_installed_name_loads_that_plugin_and_no_other(fake_site):
    fake_site.proposer("echo")
    fake_site.proposer("other")
    found = find("proposer", "echo")
    assert (found.name, found.shipped_by) == ("echo", "outrider-echo 1.0")
    assert found.plugin_class is sys.modules["fake_echo"].Proposer
    assert "fake_other" not in sys.modules


def test_an_installed_name_may_contain_a_dot(fake_site):
    fake_site.proposer("x")
    fake_site.distribution(
        "outrider-dot", entry_points={"outrider.proposers": {"fake_x.Missing": "fake_x:Proposer"}}
    )
    assert find("proposer", "fake_x.Missing").shipped_by == "outrider-dot 1.0"


def test_an_entry_point_may_name_extras_and_a_nested_class(fake_site):
    fake_site.proposer("x", "class Box:\n    Inner = Proposer\n")
    fake_site.distribution(
        "outrider-nested",
        entry_points={"outrider.proposers": {"nested": "fake_x : Box.Inner [fast, faster]"}},
    )
    assert find("proposer", "nested").plugin_class is sys.modules["fake_x"].Proposer


def test_unknown_name_tells_nearest_installed_broken_and_how_to_install(fake_site):
    fake_site.proposer("lookback")
    fake_site.proposer("shaky", "import module_that_is_missing")
    message = refusal("proposer", "lookbak")
    assert "no proposer 'lookbak' is installed; did you mean 'lookback'?" in message
    assert "lookback (outrider-lookback 1.0)" in message
    assert (
        "installed but broken: shaky (outrider-shaky 1.0): cannot be imported: "
        "ModuleNotFoundError: No module named 'module_that_is_missing'" in message
    )
    assert "pip install outrider-lookbak" in message


def test_unknown_name_with_nothing_near_does_not_guess(fake_site):
    fake_site.proposer("lookback")
    assert "did you mean" not in refusal("proposer", "qqqqqqqq")


def test_unknown_name_that_is_another_kind_of_plugin_says_so(fake_site):
    fake_site.distribution("outrider-b", entry_points={"outrider.attention_backends": {"swift": "nowhere:B"}})
    assert "'swift' is installed as attention backend" in refusal("proposer", "swift")


def test_unknown_name_does_not_import_what_is_excluded(fake_site, monkeypatch):
    fake_site.proposer("other")
    monkeypatch.setenv("OUTRIDER_PLUGINS", "echo")
    assert "other (outrider-other 1.0, excluded by OUTRIDER_PLUGINS)" in refusal("proposer", "othr")
    assert "fake_other" not in sys.modules


def test_a_name_offered_by_two_distributions_is_refused_naming_both(fake_site):
    fake_site.proposer("twin")
    fake_site.distribution("rival", "9", entry_points={"outrider.proposers": {"twin": "fake_twin:Proposer"}})
    message = refusal("proposer", "twin")
    assert message.startswith("2 distributions offer proposer 'twin': outrider-twin 1.0 and rival 9;")
    assert "fake_twin" not in sys.modules


def test_outrider_plugins_chooses_between_two_distributions(fake_site, monkeypatch):
    fake_site.proposer("twin")
    fake_site.distribution("rival", "9", entry_points={"outrider.proposers": {"twin": "nowhere:X"}})
    monkeypatch.setenv("OUTRIDER_PLUGINS", "outrider-twin")
    assert find("proposer", "twin").shipped_by == "outrider-twin 1.0"


def test_an_excluded_plugin_is_refused_naming_the_variable(fake_site, monkeypatch):
    fake_site.proposer("echo")
    monkeypatch.setenv("OUTRIDER_PLUGINS", "other")
    message = refusal("proposer", "echo")
    assert "proposer 'echo' (outrider-echo 1.0) is installed, but" in message
    assert "OUTRIDER_PLUGINS='other'" in message
    assert "fake_echo" not in sys.modules


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("import module_that_is_missing", "ModuleNotFoundError: No module named 'module_that_is_missing'"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("def broken(:", "SyntaxError: "),
        ("raise SystemExit('no GPU')", "SystemExit: no GPU"),
    ],
)
def test_import_failure_names_distribution_version_and_cause(fake_site, source, cause):
    fake_site.proposer("shaky", source, version="0.3")
    message = refusal("proposer", "shaky")
    assert message.startswith("proposer 'shaky' (outrider-shaky 0.3) cannot be imported: " + cause)


def test_import_failure_keeps_the_traceback(fake_site):
    fake_site.proposer("shaky", "1 / 0")
    with pytest.raises(PluginError) as caught:
        find("proposer", "shaky")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_missing_class_tells_the_nearest_and_the_plugin_classes_of_the_module(fake_site):
    fake_site.proposer("x")
    fake_site.distribution("outrider-y", entry_points={"outrider.proposers": {"y": "fake_x:Propser"}})
    message = refusal("proposer", "y")
    assert "module 'fake_x' has no 'Propser'; did you mean 'Proposer'?" in message
    assert "(plugin classes there: Proposer)" in message


def test_malformed_entry_point_is_refused(fake_site):
    fake_site.distribution("outrider-odd", entry_points={"outrider.proposers": {"odd": "just_a_module"}})
    assert refusal("proposer", "odd") == (
        "proposer 'odd' (outrider-odd 1.0): its entry point 'just_a_module' is not of the form module:Class"
    )


@pytest.mark.parametrize("reference", ["fake_echo:Proposer", "fake_echo.Proposer"])
def test_dotted_path(fake_site, reference):
    fake_site.proposer("echo")
    found = find("proposer", reference)
    assert (found.name, found.shipped_by) == ("Proposer", "module fake_echo")


def test_dotted_path_to_nowhere(fake_site):
    assert refusal("proposer", "no_such_module:Drafter") == (
        "proposer 'Drafter' (module no_such_module) cannot be imported: "
        "ModuleNotFoundError: No module named 'no_such_module'"
    )


def test_dotted_path_to_a_nested_class(fake_site):
    fake_site.proposer("echo", "class Box:\n    Inner = Proposer\n")
    found = find("proposer", "fake_echo:Box.Inner")
    assert (found.name, found.plugin_class) == ("Inner", sys.modules["fake_echo"].Proposer)


def test_dotted_path_to_a_file_of_this_folder_that_is_not_importable(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine_here.py").write_text(LOCAL)
    message = refusal("proposer", "mine_here:Local")
    assert message.endswith("No module named 'mine_here'; for the file here write ./mine_here.py:Local")


def test_a_class_is_taken_as_it_is():
    found = find("proposer", Given)
    assert (found.name, found.plugin_class) == ("Given", Given)
    assert found.shipped_by == f"class {__name__}.Given"


def test_a_local_file(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(LOCAL)
    monkeypatch.chdir(tmp_path)
    found = find("proposer", "./mine.py:Local")
    assert (found.name, found.shipped_by) == ("Local", "file ./mine.py")
    assert found.plugin_class.Options(size={"value": 3}).size.value == 3
    assert find("proposer", f"{tmp_path}/mine.py:Local").name == "Local"


def test_a_local_file_is_read_again_after_an_edit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(LOCAL + "\nVERSION = 1\n")
    find("proposer", "./mine.py:Local")
    Path("mine.py").write_text(LOCAL + "\nVERSION = 22\n")
    assert sys.modules[find("proposer", "./mine.py:Local").plugin_class.__module__].VERSION == 22


def test_two_local_files_of_one_name_do_not_mix(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(LOCAL)
    a, b = (find("proposer", f"{tmp_path}/{folder}/mine.py:Local").plugin_class for folder in ("a", "b"))
    assert a.__module__ != b.__module__
    assert sys.modules[a.__module__].Local is a
    assert sys.modules[b.__module__].Local is b


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("./mien.py:Local", "there is no file 'mien.py' (looked in {cwd}); did you mean 'mine.py'?"),
        ("./other/mine.py:Local", "there is no file 'other/mine.py' (looked in {cwd})"),
        ("./mine.py", "does not say which class; write ./mine.py:Class (plugin classes there: Local)"),
        ("./mine.py:Locla", "has no 'Locla'; did you mean 'Local'? (plugin classes there: Local)"),
        ("./bad.py:Local", "cannot be imported: NameError: name 'nonsense' is not defined"),
    ],
)
def test_a_local_file_that_does_not_work(tmp_path, monkeypatch, reference, expected):
    (tmp_path / "mine.py").write_text(LOCAL)
    (tmp_path / "bad.py").write_text("nonsense")
    monkeypatch.chdir(tmp_path)
    assert expected.format(cwd=repr(str(tmp_path))) in refusal("proposer", reference)


def test_a_file_that_failed_leaves_no_module_behind(tmp_path):
    (tmp_path / "bad.py").write_text("nonsense")
    before = set(sys.modules)
    refusal("proposer", f"{tmp_path}/bad.py:X")
    assert set(sys.modules) == before
