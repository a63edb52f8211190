"""Listing plugins: from metadata alone, nothing imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

from outrider.plugins import GROUPS, PluginInfo, discover, examine


def named(name: str) -> list[PluginInfo]:
    return [info for info in discover() if info.name == name]


def test_lists_every_group_by_kind_and_name(fake_site):
    fake_site.distribution(
        "outrider-all",
        "2.5",
        entry_points={
            "outrider.extensions": {"zz": "nowhere:Z"},
            "outrider.attention_backends": {"bb": "nowhere:B"},
            "outrider.proposers": {"pb": "nowhere:P", "pa": "nowhere:P"},
            "console_scripts": {"other": "nowhere:main"},
        },
    )
    found = [(i.kind, i.name) for i in discover() if i.distribution == "outrider-all"]
    assert found == [("proposer", "pa"), ("proposer", "pb"), ("attention_backend", "bb"), ("extension", "zz")]
    assert named("bb") == [
        PluginInfo(
            kind="attention_backend",
            name="bb",
            distribution="outrider-all",
            version="2.5",
            value="nowhere:B",
            status="installed",
        )
    ]


@pytest.mark.parametrize("kind", GROUPS)
def test_lists_one_kind(fake_site, kind):
    fake_site.distribution(
        "outrider-all", entry_points={group: {"it": "nowhere:X"} for group in GROUPS.values()}
    )
    assert [info.kind for info in discover(kind) if info.name == "it"] == [kind]


def test_imports_no_plugin(fake_site):
    fake_site.module("fake_bomb", "raise SystemExit('imported')")
    fake_site.distribution("outrider-bomb", entry_points={"outrider.proposers": {"bomb": "fake_bomb:Bomb"}})
    assert [info.status for info in named("bomb")] == ["installed"]
    assert "fake_bomb" not in sys.modules


@pytest.mark.parametrize("value", ["fake_module", "", "not a reference", "module:Class:More"])
def test_malformed_entry_point_is_broken_without_an_import(fake_site, value):
    fake_site.distribution("outrider-odd", entry_points={"outrider.proposers": {"odd": value}})
    (info,) = named("odd")
    assert info.status == "broken"
    assert info.error == f"its entry point {value!r} is not of the form module:Class"


def test_a_name_offered_twice_is_broken_in_both_and_names_the_other(fake_site):
    fake_site.distribution("outrider-one", entry_points={"outrider.proposers": {"twin": "one:A"}})
    fake_site.distribution("outrider-two", "3.1", entry_points={"outrider.proposers": {"twin": "two:B"}})
    assert [(i.distribution, i.status, i.error) for i in named("twin")] == [
        ("outrider-one", "broken", "its name is also offered by outrider-two 3.1"),
        ("outrider-two", "broken", "its name is also offered by outrider-one 1.0"),
    ]


def test_one_name_in_two_groups_is_no_conflict(fake_site):
    groups = {group: {"same": "nowhere:X"} for group in GROUPS.values()}
    fake_site.distribution("outrider-same", entry_points=groups)
    assert [info.status for info in named("same")] == ["installed"] * 3


def test_a_distribution_found_twice_on_the_path_counts_once(fake_site, monkeypatch):
    fake_site.proposer("echo")
    older = fake_site.path / "older"
    older.mkdir()
    type(fake_site)(older).distribution(
        "Outrider_Echo", "0.1", entry_points={"outrider.proposers": {"echo": "old:Old"}}
    )
    monkeypatch.setattr(sys, "path", [*sys.path, str(older)])
    assert [(i.distribution, i.version, i.status) for i in named("echo")] == [
        ("outrider-echo", "1.0", "installed")
    ]


def test_somebody_elses_malformed_metadata_does_no_harm(fake_site):
    fake_site.proposer("echo")
    fake_site.distribution("stranger", entry_points={"console_scripts": {}})
    (fake_site.path / "stranger-1.0.dist-info" / "entry_points.txt").write_text("[[[\nno equals sign\n[x\n")
    assert [info.status for info in named("echo")] == ["installed"]


def test_leftovers_of_a_removed_distribution_are_named_by_their_folder(fake_site):
    fake_site.distribution("outrider-gone", "4.2", entry_points={"outrider.proposers": {"gone": "gone:Gone"}})
    (fake_site.path / "outrider_gone-4.2.dist-info" / "METADATA").unlink()
    assert [(i.distribution, i.version) for i in named("gone")] == [("outrider_gone", "4.2")]


@pytest.mark.parametrize(
    ("allowed", "status"),
    [
        (None, "installed"),
        ("echo", "installed"),
        (" other , echo ", "installed"),
        ("outrider-echo", "installed"),
        ("Outrider_Echo", "installed"),
        ("other", "excluded"),
        ("", "excluded"),
        ("ech", "excluded"),
    ],
)
def test_outrider_plugins_excludes_what_it_does_not_name(fake_site, monkeypatch, allowed, status):
    fake_site.proposer("echo")
    if allowed is not None:
        monkeypatch.setenv("OUTRIDER_PLUGINS", allowed)
    assert [info.status for info in named("echo")] == [status]


def test_outrider_plugins_can_settle_a_conflict(fake_site, monkeypatch):
    fake_site.distribution("outrider-one", entry_points={"outrider.proposers": {"twin": "one:A"}})
    fake_site.distribution("outrider-two", entry_points={"outrider.proposers": {"twin": "two:B"}})
    monkeypatch.setenv("OUTRIDER_PLUGINS", "outrider-two")
    assert [(i.distribution, i.status) for i in named("twin")] == [
        ("outrider-one", "excluded"),
        ("outrider-two", "installed"),
    ]


def test_examine_tells_ok_from_broken(fake_site):
    fake_site.proposer("good")
    fake_site.proposer("bad", "import module_that_is_missing")
    fake_site.proposer("late", "del Proposer.outrider_api")
    assert [examine(info).status for info in named("good")] == ["ok"]
    (bad,) = map(examine, named("bad"))
    assert (bad.status, bad.error) == (
        "broken",
        "cannot be imported: ModuleNotFoundError: No module named 'module_that_is_missing'",
    )
    (late,) = map(examine, named("late"))
    assert late.status == "broken"
    assert "outrider_api = 1" in (late.error or "")


def test_examine_survives_a_plugin_that_exits(fake_site):
    fake_site.module("fake_exit", "import sys; sys.exit('no GPU')")
    fake_site.distribution("outrider-exit", entry_points={"outrider.proposers": {"exit": "fake_exit:X"}})
    (info,) = map(examine, named("exit"))
    assert (info.status, info.error) == ("broken", "cannot be imported: SystemExit: no GPU")


def test_examine_leaves_an_excluded_plugin_alone(fake_site, monkeypatch):
    fake_site.module("fake_bomb", "raise SystemExit('imported')")
    fake_site.distribution("outrider-bomb", entry_points={"outrider.proposers": {"bomb": "fake_bomb:Bomb"}})
    monkeypatch.setenv("OUTRIDER_PLUGINS", "echo")
    assert [examine(info).status for info in named("bomb")] == ["excluded"]
    assert "fake_bomb" not in sys.modules


def test_listing_loads_neither_torch_nor_numpy():
    code = (
        "import sys, outrider.plugins; outrider.plugins.discover(); "
        "print(*sorted({'torch', 'numpy', 'transformers', 'numba', 'rich', 'yaml'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
