"""What a deployment is told is checked before anything is written."""

import json

import pytest
from deploying import plan

from fedbridge.base.errors import OptionError
from fedbridge.data.tables.schema import Reading
from fedbridge.deploy.folders import DeploymentError, DeploymentPlan


def test_a_plan_survives_its_file():
    full = plan(
        host="::1",
        reading=Reading("disease", ("age", "sex"), ("sex",), "classification"),
        n_target=20,
        options={"lr": 0.05},
    )
    assert DeploymentPlan.from_json(full.to_json()) == full
    assert DeploymentPlan.from_json(plan().to_json()) == plan()


def test_roles_sites_and_address_follow_from_it():
    made = plan(host="link.example.org", port=9000)
    assert made.sites == ("A", "B", "T")
    assert (made.role("A"), made.role("T")) == ("source", "target")
    assert made.address == "link.example.org:9000"
    assert plan(host="::1").address == "[::1]:8000"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sources": ("A", "../B")}, r"letters, digits and hyphens, but got '\.\./B'"),
        ({"sources": ("A", "-B")}, "'-B'"),
        ({"sources": ("A", "B C")}, "'B C'"),
        ({"sources": ("A", "")}, "''"),
        ({"sources": ("x" * 41,)}, "up to 40"),
        ({"sources": ("A", "a")}, "'a' twice"),
        ({"sources": ("A", "t")}, "'t' twice"),
        ({"sources": ()}, "at least one source"),
        ({"port": 70_000}, "`port`"),
        ({"rounds": 0}, "`rounds`"),
        ({"seed": -1}, "`seed`"),
        ({"n_target": 0}, "`n_target`"),
        ({"test_fraction": 1.0}, "`test_fraction`"),
        ({"test_fraction": "much"}, "`test_fraction`"),
    ],
)
def test_what_cannot_be_is_refused(changes, message):
    with pytest.raises(OptionError, match=message):
        plan(**changes)


@pytest.mark.parametrize(
    "change", [{"format": 2}, {"port": "x"}, {"sources": None}, {"reading": {}}, {"more": 1}]
)
def test_a_damaged_plan_is_refused(change):
    content = json.loads(plan().to_json()) | change
    with pytest.raises(DeploymentError, match="Expected the plan"):
        DeploymentPlan.from_json(json.dumps(content))


@pytest.mark.parametrize("text", ["", "[]", "null", "{"])
def test_what_is_no_plan_is_refused(text):
    with pytest.raises(DeploymentError, match="Expected the plan"):
        DeploymentPlan.from_json(text)
