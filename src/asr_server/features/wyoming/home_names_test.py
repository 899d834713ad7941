"""The names of a home, from a Home Assistant that is scripted."""

import time
from contextlib import closing

import pytest

from asr_server.features.wyoming import home_names
from asr_server.features.wyoming.conftest import TOKEN, FakeHome, home_at
from asr_server.features.wyoming.home_names import HomeNames, expected_names
from E2Etest.drive.procfs import until

_WAIT_S = 30
_ALL = ("Attic", "Kitchen", "Scullery", "Bright Lamp", "Chandelier", "Outdoor Temperature")


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(home_names, "_SETTLED_S", 0.01)
    monkeypatch.setattr(home_names, "_FIRST_DELAY_S", 0.01)


def test_places_come_first_and_only_what_is_exposed_to_assist_is_named():
    """Neither an entity of another assistant nor one that exists no more has a name here."""
    with home_at(FakeHome()) as address, closing(HomeNames(address, TOKEN)) as names:
        names.tried.wait(_WAIT_S)
        assert names.current == _ALL


@pytest.mark.parametrize("registry", ["entity", "device", "area", "floor"])
def test_a_change_is_read_when_home_assistant_tells_of_it(registry):
    home = FakeHome()
    with home_at(home) as address, closing(HomeNames(address, TOKEN)) as names:
        names.tried.wait(_WAIT_S)
        home.states["light.kitchen"] = "Bulb"
        home.tell(f"{registry}_registry_updated")
        until(lambda: "Bulb" in names.current)
        assert "Bright Lamp" not in names.current


def test_names_stay_while_home_assistant_is_away_and_are_read_when_it_is_back():
    home = FakeHome()
    with home_at(home) as address:
        names = HomeNames(address, TOKEN)
        names.tried.wait(_WAIT_S)
    home.states["light.kitchen"] = "Bulb"
    assert names.current == _ALL
    with closing(names), home_at(home, int(address.rpartition(":")[2])):
        until(lambda: "Bulb" in names.current)


@pytest.mark.parametrize(
    ("token", "is_admin", "reason"), [("wrong", True, "refuses the token"), (TOKEN, False, "not that of an admin")]
)
def test_a_token_that_is_refused_is_told_and_not_tried_again_soon(token, is_admin, reason):
    """A home may ban the address of those who try again and again."""
    home = FakeHome()
    home.is_admin = is_admin
    with home_at(home) as address, closing(HomeNames(address, token)) as names:
        names.tried.wait(_WAIT_S)
        assert reason in names.refusal
        time.sleep(0.1)
        assert home.tokens == [token]


def test_what_is_no_home_assistant_is_asked_again():
    """An answer that is not known is no refusal: the home may be starting."""
    home = FakeHome()
    home.areas = None
    with home_at(home) as address, closing(HomeNames(address, TOKEN)) as names:
        names.tried.wait(_WAIT_S)
        assert (names.current, names.refusal) == ((), "")
        home.areas = []
        until(lambda: names.current)


def test_a_large_home_is_cut_after_its_places_and_before_its_sensors():
    """What is kept is the same at every reading, however the home orders it."""
    lamps = {f"light.{number}": [f"lamp number {number:04}"] for number in range(500)}
    sensors = {f"sensor.{number}": [f"air {number:04}"] for number in range(500)}
    kept = expected_names(["Kitchen"], sensors | lamps)
    assert kept[0] == "Kitchen"
    assert 100 < len(kept) <= 300
    assert len(", ".join(kept)) <= 4_000
    assert all(name.startswith("lamp") for name in kept[1:])
    assert expected_names(["Kitchen"], dict(reversed(lamps.items())) | sensors) == kept


def test_names_that_nobody_says_are_left_out():
    """Numbers, sentences and what is no text; a comma would make two names of one, and a name is kept once."""
    names = ["Bed\troom, upstairs", "bed room upstairs", "42", "x" * 61, None, 7, ""]
    assert expected_names(names, {}) == ("Bed room upstairs",)
