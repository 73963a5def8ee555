"""What is said for what was measured."""

from dataclasses import replace

import pytest

from fedbridge.advice.verdict import (
    Advice,
    Losses,
    Partner,
    Point,
    RuleError,
    decided,
    listed,
    role_of,
    rounded,
    simplest_of_the_best,
)
from fedbridge.evaluation.intervals import Interval


def about(value, spread=0.05):
    return Interval(value, value - spread, value + spread)


def partner(name, ratio=0.5, cosine=0.9, spread=0.05):
    angle, distance = about(cosine, 0.05), about(ratio, spread)
    role = role_of(distance, angle)
    return Partner(name, 100, distance, angle, distance, about(0.5), role)


def rule(name, share, spread=0.05):
    return RuleError(name, about(share, spread), about(share, spread))


def losses(gain, spread=0.05):
    return Losses(1.0, 1.0 - gain, 1.0 - gain, about(gain, spread), 40)


PARTNERS = (partner("Budapest"), partner("Zurich"), partner("Long Beach", ratio=20.0))
JOINED = (rule("fedda-joint", 0.37), rule("fedda", 0.6), rule("target-only", 1.0, 0.0))


def advice(rules=JOINED, freedom=30, **more):
    given = {"partners": PARTNERS, "sigma2": about(1.0), "samples": 40, **more}
    blank = Advice("hospitals", "Oslo", 0, "gradients", rules=rules, **given)
    return decided(blank, freedom=freedom)


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
        said = advice(enough=178)
        assert said.decision == "join"
        assert (said.recommended, said.best_rule) == ("auto", "fedda-joint")
        assert str(said) == (
            "Join: the expected error of the update falls by 63% (58% to 68%) against training "
            "alone. Budapest and Zurich help; Long Beach is far, its weight should be near zero. "
            "Recommended: `auto`, which learns in every round whom to trust; of the single rules "
            "`fedda-joint` has the smallest predicted error. With about 180 labelled samples you "
            "would no longer need partners."
        )

    def test_the_trial_may_agree_or_be_silent(self):
        assert advice(losses=losses(0.3)).decision == "join"
        assert advice(losses=losses(0.0, 0.2)).decision == "join"

    def test_partners_that_stay_useful(self):
        said = advice(curve=(Point(10, 1.0, 0.1, "fedavg"), Point(640, 0.1, 0.05, "fedavg")))
        assert said.verdict.endswith(
            "Even with 640 labelled samples partners would still be worth having."
        )

    def test_no_rule_helps(self):
        far = (rule("fedda-joint", 0.97), rule("target-only", 1.0, 0.0), rule("fedda", 3.0))
        said = advice(far, partners=(partner("Long Beach", 20.0),))
        assert (said.decision, said.recommended) == ("alone", "target-only")
        assert str(said) == (
            "Stay alone: no rule is expected to lower the error of the update by more than 3% "
            "against training alone. Long Beach is far, its weight should be near zero. "
            "Recommended: `target-only`. What no single rule finds, `auto` may still find: it is "
            "worth a try before the door is closed."
        )

    def test_an_opposed_partner_is_named(self):
        said = advice(partners=(partner("Ely", 5.0, cosine=-0.8),))
        assert "Ely pulls the other way." in said.verdict

    def test_every_rule_makes_it_worse(self):
        said = advice((rule("target-only", 1.0, 0.0), rule("fedda", 3.0)))
        assert "by more than 0%" in said.verdict

    @pytest.mark.parametrize("decision", ["join", "alone"])
    def test_gradients_and_losses_that_disagree_decide_nothing(self, decision):
        if decision == "join":
            said = advice(losses=losses(-0.3))
        else:
            said = advice((rule("fedda", 2.0), rule("target-only", 1.0)), losses=losses(0.3))
        assert (said.decision, said.recommended) == ("unclear", "auto")
        assert "the loss on the target's rows" in said.thin[0]
        assert said.verdict.startswith("The evidence is too thin to decide: the gradients speak")

    def test_an_interval_with_both_answers_decides_nothing(self):
        said = advice((rule("fedda", 0.7, 0.5), rule("target-only", 1.0, 0.0)))
        assert said.recommended == "auto"
        assert said.thin == ("the error may rise by 20% or fall by 80%",)

    @pytest.mark.parametrize(
        ("gain", "decision", "method", "words"),
        [
            (0.4, "join", "auto", "Join: the loss on the target's own rows is lower "),
            (
                -0.4,
                "alone",
                "target-only",
                "Stay alone: the loss on the target's own rows is higher ",
            ),
        ],
    )
    def test_losses_decide_where_gradients_do_not(self, gain, decision, method, words):
        said = advice((rule("fedda", 0.7, 0.5), rule("target-only", 1.0)), losses=losses(gain))
        assert (said.decision, said.recommended) == (decision, method)
        assert said.verdict.startswith(words + "by 40% (35% to 45%)")
        assert said.thin == ()

    def test_few_batches_decide_nothing_whatever_the_losses(self):
        assert advice(freedom=3, losses=losses(0.4)).decision == "unclear"

    def test_few_batches_decide_nothing(self):
        said = advice(freedom=1)
        assert said.recommended == "auto"
        assert "1 degree of freedom" in said.verdict
        assert "lets the cross-validated loss decide" in said.verdict

    def test_one_batch_decides_nothing(self):
        said = advice((), freedom=0, partners=(), sigma2=None)
        assert said.reduction is None
        assert said.verdict.startswith(
            "The evidence is too thin to decide: the target's noise cannot be measured on a single "
            "batch. Recommended: `auto`"
        )

    def test_evidence_is_thin_exactly_where_nothing_is_decided(self):
        for said in (advice(), advice(freedom=3), advice(losses=losses(-0.3))):
            assert bool(said.thin) == (said.decision == "unclear")

    def test_names_come_from_data_and_stay_as_they_are(self):
        said = advice(partners=(partner("{0} [red]<script>"),))
        assert "{0} [red]<script> helps." in said.verdict


class TestChoice:
    def test_of_rules_that_hardly_differ_the_simplest_is_taken(self):
        tied = (rule("zeno", 0.10), rule("fedda-joint", 0.11), rule("fedavg", 0.14))
        assert simplest_of_the_best(tied).rule == "fedavg"
        apart = (*tied[:2], rule("fedavg", 0.2))
        assert simplest_of_the_best(apart).rule == "fedda-joint"

    def test_training_alone_is_not_joining(self):
        assert simplest_of_the_best((rule("target-only", 0.1), rule("fedda", 2.0))).rule == "fedda"
        assert simplest_of_the_best((rule("target-only", 1.0),)) is None


class TestWords:
    def test_names_are_listed_as_people_do(self):
        assert listed(["A"]) == "A"
        assert listed(["A", "B"]) == "A and B"
        assert listed(["A", "B", "C"]) == "A, B and C"
        assert listed([str(k) for k in range(9)]) == "0, 1, 2, 3, 4 and 4 others"

    def test_counts_have_two_digits(self):
        assert [rounded(n) for n in (7, 42, 178, 1649)] == [7, 42, 180, 1600]

    def test_json_is_plain(self):
        plain = advice(losses=losses(0.1)).to_json()
        assert plain["format"] == 1
        assert plain["sigma2"] == {"value": 1.0, "low": 0.95, "high": 1.05}
        assert plain["rules"][0]["rule"] == "fedda-joint"
        assert plain["partners"][2]["role"] == "far"

    def test_advice_cannot_be_changed(self):
        with pytest.raises(AttributeError):
            advice().verdict = "Join."
        assert replace(advice(), verdict="x").verdict == "x"
