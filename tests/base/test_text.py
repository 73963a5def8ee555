"""Text from data on its way to people."""

from fedbridge.base.text import shortened


def test_long_names_keep_both_ends():
    assert shortened("short", 22) == "short"
    names = [f"University Hospital of {city}" for city in ("Bern", "Zurich")]
    found = [shortened(name, 22) for name in names]
    assert found == ["University …al of Bern", "University … of Zurich"]
