"""What is said for what was measured."""

from dataclasses import replace

import pytest

from fedbridge.advice.verdict import (
    Advice,
    Partner,
    Point,
    RuleError,
    decided,
    enough_samples,
    listed,
    ranked,
    relative,
    role_of,
)
from fedbridge.evaluation.intervals import Interval
from fedbridge.methods.candidates import Worth


def about(value, spread=0.05):
    return Interval(value, value - spread, value + spread)


def partner(name, ratio=0.5, cosine=0.9, spread=0.05):
    angle, distance = about(cosine, 0.05), about(ratio, spread)
    role = role_of(distance, angle)
    return Partner(name, 100, distance, angle, distance, about(0.5), role)


def worth(gain, error=0.05, points=12.0, rows=40, *, of_classes=True):
    return Worth(rows, 0.5, gain, error, points, 4.0, of_classes)


PARTNERS = (partner("Budapest"), partner("Zurich"), partner("Long Beach", ratio=20.0))


def advice(found=None, **more):
    given = {"partners": PARTNERS, "sigma2": about(1.0), "samples": 40, **more}
    return decided(Advice("hospitals", "Oslo", 0, "gradients", worth=found, **given))


class TestRoles:
    @pytest.mark.parametrize(
        ("ratio", "cosine", "role"),
        [
            (about(0.5), about(0.9), "helps"),
            (about(20.0), about(0.1, 0.3), "far"),
            (about(5.0), about(-0.8, 0.1), "opposed"),
            (Interval(2.0, -1.0, 9.0), about(0.5), "unclear"),
            (Interval(-0.5, -1.0, 0.2), about(1.0), "helps"),
        ],
    )
    def test_a_partner_by_distance_and_angle(self, ratio, cosine, role):
        assert role_of(ratio, cosine) == role


class TestVerdict:
    def test_joining_is_worth_it(self):
        said = advice(worth(0.2))
        assert (said.decision, said.recommended, said.thin) == ("join", "auto", "")
        assert str(said) == (
            "Join: cross-validated on your 40 labels, it makes +12 ± 4 points of accuracy and a "
            "loss that is lower by 40% (20% to 60%), against training alone. Budapest and Zurich "
            "help; Long Beach is far, its weight should be near zero. Recommended: `auto`, which "
            "learns in every round whom to trust, and how far."
        )

    def test_nobody_is_needed(self):
        said = advice(worth(-0.002, 0.002, points=0.0))
        assert (said.decision, said.recommended, said.thin) == ("alone", "alone-auto", "")
        assert str(said) == (
            "Stay alone: cross-validated on your 40 labels, the sources lower the loss by 0% at "
            "most. Long Beach is far, its weight should be near zero. Recommended: `alone-auto`, "
            "which makes the best of your own rows."
        )

    def test_labels_that_cannot_tell(self):
        said = advice(worth(0.02, 0.05, points=3.0))
        assert (said.decision, said.recommended) == ("unclear", "auto")
        assert said.verdict.startswith(
            "The evidence is too thin to decide: cross-validated, joining makes +3 ± 4 points of "
            "accuracy against training alone. "
        )
        assert said.verdict.endswith("in which what needs no source stays in the choice.")

    def test_nothing_that_was_tried_decides_nothing(self):
        said = advice(None)
        assert (said.decision, said.recommended) == ("unclear", "auto")
        assert said.thin == (
            "nothing could be tried on the target's own labels (it takes two of one class)"
        )

    def test_numbers_are_told_in_their_unit(self):
        said = advice(worth(0.2, points=40.0, of_classes=False))
        assert "it makes -40 ± 4 % of the squared error" in said.verdict

    def test_an_opposed_partner_is_named(self):
        said = advice(worth(0.2), partners=(partner("Ely", 5.0, cosine=-0.8),))
        assert (
            "As they are, Ely pulls the other way; what they have learned can be turned to use."
            in said.verdict
        )

    def test_evidence_is_thin_exactly_where_nothing_is_decided(self):
        for said in (advice(worth(0.2)), advice(worth(0.0, 0.001)), advice(worth(0.0)), advice()):
            assert bool(said.thin) == (said.decision == "unclear")

    def test_names_come_from_data_and_stay_as_they_are(self):
        said = advice(worth(0.2), partners=(partner("{0} [red]<script>"),))
        assert "{0} [red]<script> helps." in said.verdict

    def test_what_is_saved_is_a_part_of_the_loss_alone(self):
        found = relative(worth(0.1, 0.05))
        assert (found.value, found.low, found.high) == pytest.approx((0.2, 0.004, 0.396))


class TestTheory:
    def test_the_smallest_error_comes_first(self):
        errors = {"fedda": about(0.6), "target-only": about(1.0), "fedgp": about(0.4)}
        found = ranked(errors, errors, bound=True)
        assert [rule.rule for rule in found] == ["fedgp", "fedda", "target-only"]
        assert [rule.bound for rule in found] == [True, True, False]

    def test_partners_are_needed_up_to_so_many_samples(self):
        points = [Point(10, 1.0, 0.5, "fedda"), Point(1000, 0.01, 0.01, "fedda")]
        assert 10 < enough_samples(points) < 1000
        assert enough_samples(points[:1]) is None
        assert enough_samples(()) is None


class TestWords:
    def test_names_are_listed_as_people_do(self):
        assert listed(["A"]) == "A"
        assert listed(["A", "B"]) == "A and B"
        assert listed(["A", "B", "C"]) == "A, B and C"
        assert listed([str(k) for k in range(9)]) == "0, 1, 2, 3, 4 and 4 others"

    def test_json_is_plain(self):
        plain = advice(worth(0.1), rules=(RuleError("fedda", about(0.5), about(0.5)),)).to_json()
        assert plain["format"] == 2
        assert plain["sigma2"] == {"value": 1.0, "low": 0.95, "high": 1.05}
        assert plain["worth"]["gain"] == 0.1
        assert plain["rules"][0]["rule"] == "fedda"
        assert plain["partners"][2]["role"] == "far"

    def test_advice_cannot_be_changed(self):
        with pytest.raises(AttributeError):
            advice().verdict = "Join."
        assert replace(advice(), verdict="x").verdict == "x"
