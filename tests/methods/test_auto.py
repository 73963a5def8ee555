"""``auto``: candidates are judged by rows they never saw, and the best of them comes out."""

from dataclasses import replace
from itertools import permutations
from types import SimpleNamespace

import pytest
import torch
from small import Normed, blobs, federation, line, method
from torch import nn
from torch.nn import functional

import fedbridge as fb
from fedbridge.base.errors import OptionError
from fedbridge.methods import auto as module
from fedbridge.methods import candidates
from fedbridge.methods.auto import AutoTargetSide, Candidate, Recipe, discord, other_names
from fedbridge.methods.candidates import (
    ALONE,
    EARLIER,
    HEAD,
    INPUTS,
    LAST,
    LED,
    LIGHT,
    LINEARISED,
    NETWORK,
    RECALIBRATED,
    TUNED,
    Bench,
    Sum,
    Training,
    Worth,
)
from fedbridge.training.blend import Blended
from fedbridge.training.state import Blend, State, model_of_tensors
from fedbridge.training.target_side import News

QUICK = {
    "rounds": 2,
    "workers": 1,
    "model": "mlp:8",
    "lr": 0.1,
    "batch_size": 8,
    "batch_size_target": 8,
}


SHORT = Training((0.3, 1.0), (3, 6), 5)


@pytest.fixture(autouse=True)
def _short_trainings(monkeypatch):
    monkeypatch.setattr(module, "FULL", SHORT)


@pytest.fixture
def trained(monkeypatch) -> list[tuple[str, Training]]:
    """The families of networks that were trained, and how."""
    found, tuned = [], Bench.tuned

    def noted(bench, family, name, start, how):
        found.append((family, how))
        return tuned(bench, family, name, start, how)

    monkeypatch.setattr(Bench, "tuned", noted)
    return found


def lonely(side):
    """As if nothing that needs sources had any weight."""
    side.lone += side.federation.round >= module.REST_FROM


def every_candidate(bench):
    """Of the initial model, and of nobody."""
    start = bench.federation.initial
    body = bench.body(LAST, start)
    tuned = bench.tuned(TUNED, LAST, start, SHORT) + bench.tuned(NETWORK, "", start, SHORT)
    return [*bench.refit(body), *bench.alone, *tuned, *bench.linearised(body)]


class TestWhatIsKnownBeforehand:
    """Weights of candidates that are judged equal."""

    def weights(self, task, *recipes, discord=0.0):
        bench = Bench(federation(task))
        same = torch.zeros_like(bench.rows.truth)
        return bench.weigh([Candidate(recipe, same) for recipe in recipes], discord)

    @pytest.mark.parametrize(
        ("labels", "discord", "times"),
        [(12, 0, 4), (12, 1, 1), (12, 1e9, 0.25), (9, 0, 0.25), (9, 1e9, 0.25)],
    )
    def test_the_sources_model_counts_more_if_they_agree_and_no_class_has_few_labels(
        self, labels, discord, times
    ):
        led, other, head = self.weights(
            blobs(target_rows=labels),
            *(Recipe(LED, LAST), Recipe(RECALIBRATED, LAST), Recipe(HEAD, LAST)),
            discord=discord,
        )
        assert led == other == pytest.approx(times * head)

    def test_an_earlier_model_counts_a_quarter_unless_it_is_trained_on(self):
        last, earlier, tuned = self.weights(
            blobs(), Recipe(HEAD, LAST), Recipe(HEAD, EARLIER), Recipe(TUNED, EARLIER)
        )
        assert earlier == pytest.approx(last / 4)
        assert tuned == pytest.approx(last)

    def test_a_family_has_its_weight_whatever_its_number(self):
        one, two, alone = self.weights(
            blobs(), Recipe(HEAD, LAST, 1, 1), Recipe(HEAD, LAST, 1, 2), Recipe(ALONE)
        )
        assert one + two == pytest.approx(alone)


class TestDiscord:
    """How much sources differ from each other, in units of the target's noise."""

    def of(self, gradients, noises, own=0.5):
        """That of gradients (N, m), with the noises of the sources and of the target."""
        gram = gradients.double() @ gradients.double().T
        known = None if own is None else SimpleNamespace(sigma2=torch.tensor([own]))
        reports = [
            SimpleNamespace(noise=None if v is None else torch.tensor([v / 2, v / 2]))
            for v in noises
        ]
        geometry = SimpleNamespace(source_gram=gram[None], noise=known)
        return discord(geometry, SimpleNamespace(reports=reports))

    def test_is_the_variance_among_sites_whatever_the_noise_of_each(self):
        draw = torch.Generator().manual_seed(0)
        among, noises, size = 2.0, [0.3, 1.0, 2.0, 0.1], 40
        found = []
        for _ in range(2000):
            sites = torch.randn(4, size, generator=draw) * (among / size) ** 0.5 + 1
            seen = torch.randn(4, size, generator=draw) * torch.tensor(noises)[:, None].sqrt()
            found.append(self.of(sites + seen / size**0.5, noises))
        mean, spread = torch.tensor(found).mean(), torch.tensor(found).std()
        assert abs(mean - among / 0.5) < 4 * spread / len(found) ** 0.5

    def test_is_nought_where_all_are_alike(self):
        assert self.of(torch.ones(3, 5), [0.2, 0.2, 0.2]) == 0

    @pytest.mark.parametrize(
        ("number", "noises", "own"),
        [(1, [0.1], 1.0), (2, [0.1, None], 1.0), (2, [0.1, 0.1], None), (2, [0.1, 0.1], 0.0)],
        ids=["one source", "a noise is missing", "the target's is", "and is nought"],
    )
    def test_is_unknown(self, number, noises, own):
        assert self.of(torch.eye(2)[:number], noises, own) is None

    def test_is_told_to_the_target_and_kept(self):
        fed = federation(blobs(), method="auto", batch_size_target=3)
        run = method("auto", fed)
        for number in range(1, 5):
            fed.begin_round(number)
            run.run_round(number)
        assert run.discord is not None
        assert run.side.discord == run.discord
        assert run.facts()["discord"] == run.discord

    def test_sources_that_differ_are_told_from_those_that_do_not(self):
        alike, apart = blobs(), blobs()
        other = replace(apart.sources[0], y=(apart.sources[0].y + 1) % 3)
        apart = replace(apart, sources=(other, *apart.sources[1:]))
        found = []
        for task in (alike, apart):
            run = method("auto", federation(task, method="auto", batch_size_target=3))
            run.run_round(1)
            found.append(run.discord)
        assert found[0] < found[1] / 2


class TestCrossValidation:
    def test_needs_at_least_two_folds(self):
        with pytest.raises(OptionError, match="folds"):
            method("auto", federation(), folds=1)

    def test_every_row_is_held_out_by_one_fold(self):
        bench = Bench(federation(), 4)
        assert sorted(torch.cat(bench.folds).tolist()) == list(range(12))
        for k, fold in enumerate(bench.folds):
            held_out = bench.rows.weights[k] == 0
            assert torch.equal(bench.seen[held_out].sort().values, fold)

    def test_few_rows_are_each_held_out_alone_and_more_in_ten_or_five_folds(self):
        assert [len(f) for f in Bench(federation(blobs(target_rows=12))).folds] == [1] * 12
        assert len(Bench(federation(blobs(target_rows=60))).folds) == 10
        assert len(Bench(federation(blobs(target_rows=61))).folds) == 5

    def test_no_fold_changes_the_shares_of_the_classes(self):
        bench = Bench(federation(blobs(target_rows=30)), 4)
        labels = bench.rows.labels
        for weights in bench.rows.weights:
            shares = [float(weights[labels == c].sum()) for c in range(3)]
            assert shares == pytest.approx(torch.bincount(labels).double().tolist())

    def test_a_row_whose_class_is_its_own_has_no_say(self):
        task = blobs(target_rows=9)
        labels = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, 2])
        bench = Bench(federation(replace(task, target=replace(task.target, y=labels))))
        assert bench.counts.tolist() == [True] * 8 + [False]

    @pytest.mark.parametrize(
        ("labels", "alone"), [([0, 1, 2], True), ([0, 1], True), ([0, 0, 1, 2], False)]
    )
    def test_classes_with_one_label_judge_nothing_that_is_fitted(self, labels, alone):
        task = blobs(target_rows=len(labels))
        target = replace(task.target, y=torch.tensor(labels))
        bench = Bench(federation(replace(task, target=target)))
        assert bench.judges_no_fit == alone
        body = bench.body(LAST, bench.federation.initial)
        found = [*bench.refit(body), *bench.alone]
        worse = [
            c if c.recipe.family in (LED, RECALIBRATED) else replace(c, held_out=-9 * c.held_out)
            for c in found
        ]
        assert torch.equal(bench.weigh(found), bench.weigh(worse)) == alone
        assert (bench.worth(found, bench.weigh(found)) is None) == alone

    def test_one_label_of_each_class_is_worth_something_where_the_sources_model_fails(self):
        task = fb.load_task("digits-rotation", angle=30.0, n_target=10)
        auto, led = (fb.run(task, name, 20, workers=1).accuracy for name in ("auto", "source-only"))
        assert auto > led + 5

    def test_replicas_take_as_many_steps_as_the_model_they_stand_for(self, monkeypatch):
        fed, steps = federation(blobs(target_rows=30)), []
        run = fed.bench.run
        monkeypatch.setattr(
            fed.bench, "run", lambda job, *rest: steps.append(job.plan.steps) or run(job, *rest)
        )
        Bench(fed).tuned(TUNED, LAST, fed.initial, SHORT)
        stages = [3] * 6 + [3] * 6  # of five replicas and the model itself, then from 3 to 6
        assert steps == stages * len(SHORT.rates)

    def test_of_many_rows_a_part_is_seen(self, monkeypatch):
        monkeypatch.setattr(candidates, "MOST_ROWS", 20)
        bench = Bench(federation(blobs(target_rows=60)), 5)
        assert len(bench.seen) == 20
        assert all(int(torch.isin(bench.seen, fold).sum()) == 4 for fold in bench.folds)

    def test_is_honest(self):
        """Cross-validated and test accuracy differ by less than two points on the average."""
        gaps = []
        for name, options in (("digits-rotation", {"angle": 30.0}), ("digits-contrast", {})):
            for seed in range(4):
                task = fb.load_task(name, seed=seed, n_target=60, **options)
                made = fb.run(task, "source-only", 4, seed, workers=1)
                fed = federation(task, model=made.model, seed=seed)
                gaps += signed_gaps(Bench(fed), fed)
        assert abs(sum(gaps) / len(gaps)) < 2


def signed_gaps(bench, fed):
    """Cross-validated less test accuracy of every linear candidate."""
    body = bench.body(LAST, fed.initial)
    found = []
    for candidate in [*bench.refit(body), *bench.alone]:
        right = candidate.held_out.argmax(1) == bench.rows.labels
        blend = Sum.of(bench, [(candidate, 1.0)]).blend({LAST: fed.initial})
        found.append(100 * float(right.double().mean()) - fed.measure(blend).accuracy)
    return found


class TestCandidates:
    @pytest.mark.parametrize(("labels", "surer"), [(60, True), (61, False)])
    def test_the_sources_model_may_be_made_surer_by_few_labels(self, labels, surer):
        bench = Bench(federation(blobs(target_rows=labels)))
        recipes = [c.recipe for c in bench.refit(bench.body(LAST, bench.federation.initial))]
        assert surer == any(r.family == RECALIBRATED and r.slope > 1 for r in recipes)

    def test_a_model_that_is_right_and_unsure_is_made_surer(self, monkeypatch):
        task = fb.load_task("digits-none", n_target=15)

        def pale(site):
            return replace(site, x=0.35 * site.x)

        task = replace(task, target=pale(task.target), test=pale(task.test))
        surer = fb.run(task, "auto", 20, workers=1).accuracy
        monkeypatch.setattr(candidates, "SURER", [])
        assert surer > fb.run(task, "auto", 20, workers=1).accuracy + 3


def misnamed(task, names):
    """The task with other names of the classes at the target."""
    order = torch.tensor(names)
    target, test = (replace(site, y=order[site.y]) for site in (task.target, task.test))
    return replace(task, target=target, test=test)


class TestNames:
    """A target may call the classes by other names than the sources do."""

    def seen(self, task, factor=1.0, epochs=30):
        """A bench without models of its own, and what it sees of a model of the sources.

        The last layer of that is multiplied by a factor.
        """
        fed = federation(task, model="mlp:8")
        led = fb.run(task, "source-only", epochs, workers=1, model="mlp:8", lr=0.1).model
        vector = nn.utils.parameters_to_vector(led.parameters()).detach()
        bench = Bench(fed)
        bench.alone = []
        layer = (factor * part for part in bench.place.read(vector))
        state = State(bench.place.put(vector, *layer), fed.initial.buffers)
        return bench, bench.body(LAST, state)

    @pytest.mark.parametrize("names", [*permutations(range(3))])
    def test_the_likeliest_permutation_is_found(self, names):
        bench, body = self.seen(misnamed(blobs(target_rows=12), names))

        def likelihood(order):
            said = functional.cross_entropy(
                body.outputs[:, list(order)], bench.rows.labels, reduction="sum"
            )
            return float(-said) + sum(k == j for k, j in enumerate(order))

        best = max(permutations(range(3)), key=likelihood)
        found = bench._likeliest_names(body.outputs, bench.rows.all)
        assert tuple(found.tolist()) == best
        assert [best[name] for name in names] == [0, 1, 2]
        told = bench.names(body)
        assert told is None if best == (0, 1, 2) else torch.equal(told, found)

    def test_a_renamed_body_is_a_model_that_says_so(self):
        bench, body = self.seen(misnamed(blobs(target_rows=12), [1, 2, 0]))
        renamed = bench.renamed(body, bench.names(body))
        again = bench.body(LAST, renamed.state)
        assert torch.equal(again.outputs, renamed.outputs)
        assert torch.equal(again.features, body.features)
        assert bench.losses(again.outputs).mean() < 0.5 < 2 < bench.losses(body.outputs).mean()

    @pytest.mark.parametrize(("sure", "needed"), [(0.0, True), (20.0, False)])
    def test_are_taken_up_where_its_own_models_are_no_better(self, sure, needed):
        bench, body = self.seen(misnamed(blobs(target_rows=12), [1, 2, 0]))
        held_out = sure * bench.rows.truth
        bench.alone = [Candidate(Recipe(ALONE), held_out)]
        assert (bench.names(body) is not None) == needed

    def test_outputs_of_the_other_sign_are_no_other_names(self):
        bench, body = self.seen(blobs(target_rows=12), factor=-1.0)
        assert not torch.equal(
            bench._likeliest_names(body.outputs, bench.rows.all), torch.arange(3)
        )
        assert bench.names(body) is None

    def test_a_model_that_knows_nothing_is_not_renamed(self):
        fed = federation(blobs(target_rows=12), model="mlp:8")
        bench = Bench(fed)
        assert bench.names(bench.body(LAST, fed.initial)) is None

    def test_numbers_and_two_classes_have_no_other_names(self):
        task = blobs(target_rows=12)
        every = (*task.sources, task.target, task.test)
        *sources, target, test = (replace(site, y=site.y.clamp(max=1)) for site in every)
        two = replace(task, sources=tuple(sources), target=target, test=test, n_classes=2)
        for other, model in ((line(), "linear"), (two, "mlp:8")):
            bench = Bench(federation(other, model=model))
            assert bench.names(bench.body(LAST, bench.federation.initial)) is None

    def test_other_names_cost_next_to_nothing(self):
        task = fb.load_task("digits-none", n_target=30)
        usual, other = (
            fb.run(one, "auto", 8, workers=1)
            for one in (task, misnamed(task, [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]))
        )
        assert other.accuracy > usual.accuracy - 2
        said = "0 is 9 there, 1 is 0 there, 2 is 1 there, 7 more"
        assert other_names(other.history[-1]["said"]) == f"{module.OTHER_NAMES} {said}"
        assert other_names(usual.history[-1]["said"]) == ""

    def sentence(self, shares, **names):
        """What is said of a choice when the last and the best body have these names."""
        task = replace(blobs(target_rows=12), class_names=("mild", "severe " * 9, "none"))
        target = task.target
        target = replace(target, x=target.x[target.y != 2], y=target.y[target.y != 2])
        side = method("auto", federation(replace(task, target=target), model="mlp:8")).side
        for name, order in names.items():
            setattr(side, name, torch.tensor(order))
        return side._said(shares, None)

    def test_it_says_which_of_the_targets_classes_they_are_and_no_long_name_in_full(self):
        said = other_names(self.sentence({f"{LED}, {LAST}": 1.0}, names=[1, 2, 0]))
        first, second = said.partition(": ")[2].split(", ")
        assert first.startswith("mild is severe")
        assert second.endswith("is none there")
        assert len(said) < 120, "one class is not there, and one name is long"

    @pytest.mark.parametrize(
        ("kin", "told"), [(f"{LED}, {LAST}", True), (f"{LED}, {EARLIER}", False), (ALONE, False)]
    )
    def test_it_says_so_where_the_model_that_weighs_most_has_them(self, kin, told):
        assert bool(other_names(self.sentence({kin: 1.0}, names=[1, 0, 2]))) == told
        swapped = self.sentence({kin: 1.0}, best_names=[1, 0, 2])
        assert bool(other_names(swapped)) == (kin.endswith(EARLIER))

    def test_names_are_taken_up_again(self):
        task = misnamed(blobs(target_rows=12), [1, 2, 0])
        first, second = (method("auto", federation(task, model="mlp:8")) for _ in range(2))
        first.side.names, first.side.best_names = torch.tensor([2, 0, 1]), None
        second.side.remember(first.side.memory(), first.side.facts())
        assert second.side.names.tolist() == [2, 0, 1]
        assert second.side.best_names is None


class TestBlend:
    @pytest.mark.parametrize("model", ["mlp:8", "linear"])
    def test_is_the_weighted_sum_of_its_candidates(self, model):
        fed = federation(blobs(target_rows=12), model=model)
        bench = Bench(fed)
        found = every_candidate(bench)
        weights = torch.rand(len(found)).tolist()
        weighted = list(zip(found, weights, strict=True))
        total = Sum.of(bench, weighted).blend({LAST: fed.initial})
        parts = [
            weight
            * fed.predict(Sum.of(bench, [(c, 1.0)]).blend({LAST: fed.initial}), fed.task.test)
            for c, weight in weighted
        ]
        outputs = fed.predict(total, fed.task.test)
        # the secant of a sum is the sum of secants up to the square of its step
        near = 1e-4 if model == "linear" else 1e-2
        torch.testing.assert_close(outputs, torch.stack(parts).sum(0), atol=near, rtol=near)

    def test_of_a_linear_model_is_a_linear_model(self):
        result = fb.run(blobs(target_rows=12), "auto", **{**QUICK, "model": "linear"})
        assert not isinstance(result.model, Blended)

    def test_has_at_most_three_networks_and_what_is_linearised_takes_two_more(self, monkeypatch):
        monkeypatch.setattr(module, "SHARE_OF_WORK", 1e6)
        monkeypatch.setattr(module, "LINEARISED_FROM", 1)
        result = fb.run(blobs(target_rows=12), "auto", **{**QUICK, "rounds": 4})
        assert isinstance(result.model, Blended)
        assert len(result.model.members) == 5
        monkeypatch.setattr(module, "SHARE_OF_WORK", 0.0)
        result = fb.run(blobs(target_rows=12), "auto", **{**QUICK, "rounds": 4})
        assert len(result.model.members) <= 3

    def test_can_be_one_plain_model(self):
        task = blobs(target_rows=12)
        single = fb.run(task, "auto", **{**QUICK, "rounds": 4}, single=True)
        plain = fb.run(task, "source-only", **QUICK)
        assert type(single.model) is type(plain.model)
        assert single.summary["accuracy"] > 60

    def test_one_plain_model_may_be_a_fine_tuned_one(self, monkeypatch):
        monkeypatch.setattr(module, "SHARE_OF_WORK", 1e6)
        prior = lambda bench, recipe, _: 1.0 if recipe.family == TUNED else 1e-9  # noqa: E731
        monkeypatch.setattr(Bench, "_prior", prior)
        result = fb.run(blobs(target_rows=12), "auto", **{**QUICK, "rounds": 4}, single=True)
        assert not isinstance(result.model, Blended)
        assert result.history[-1]["choice"].startswith((TUNED, NETWORK))

    def test_a_candidate_that_has_come_to_nothing_is_left_out(self):
        fed = federation(blobs(target_rows=12))
        side = method("auto", fed).side
        fed.begin_round(1)
        wild = State(fed.initial.parameters * torch.inf, {})
        decision = side.decide(News(wild.tensors(), {"work": 0.0}))
        assert set(decision.facts["losses"]) == {ALONE}
        assert all(bool(t.isfinite().all()) for t in decision.state.tensors().values())

    def test_a_network_of_the_sources_that_has_come_to_nothing_is_left_out(self):
        fed = federation(blobs(target_rows=12), "mlp:8")
        side = method("auto", fed).side
        for number, factor in ((1, 1.0), (2, torch.inf), (3, torch.inf)):
            fed.begin_round(number)
            led = State(fed.initial.parameters * factor, {})
            decision = side.decide(News(led.tensors(), {"work": 0.0}))
            assert sum(decision.facts["weights"].values()) == pytest.approx(1)
            assert "nan" not in decision.facts["said"]
            assert bool(fed.predict(decision.state, fed.task.test).isfinite().all())
            assert len(side.facts()["weights"]) == len(side.pulls)

    def test_without_any_finite_candidate_the_led_model_is_told_of(self):
        fed = federation(blobs(target_rows=12), "mlp:8")
        side = method("auto", fed, single=True).side
        fed.begin_round(1)
        wild = State(fed.initial.parameters * torch.inf, {})
        decision = side.decide(News(wild.tensors(), {"work": 0.0}))
        assert "finite" in decision.facts["said"]

    def test_a_model_that_changes_its_inputs_is_not_a_linear_one(self):
        class Shrinking(nn.Module):
            def __init__(self):
                super().__init__()
                self.head = nn.Linear(2, 3)

            def forward(self, x):
                return self.head(torch.tanh(x))

        assert Bench(federation(blobs())).is_linear
        assert not Bench(federation(blobs(), Shrinking())).is_linear

    def test_is_found_again_in_its_tensors(self):
        fed = federation()
        blend = Blend((fed.initial,) * 2, torch.tensor([0.3, 0.7]), torch.randn(3, 3))
        again = model_of_tensors(blend.tensors("x."), "x.")
        assert again.tensors().keys() == blend.tensors().keys()
        torch.testing.assert_close(
            fed.predict(again, fed.task.test), fed.predict(blend, fed.task.test)
        )

    @pytest.mark.parametrize("single", [False, True])
    def test_a_model_without_a_linear_end_can_take_part(self, single):
        class Odd(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = nn.Linear(2, 3)

            def forward(self, x):
                return torch.tanh(self.body(x)) * 3

        options = {**QUICK, "model": Odd(), "rounds": 4, "single": single}
        result = fb.run(blobs(target_rows=12), "auto", **options)
        assert result.summary["accuracy"] > 60
        assert not any(kin.startswith(HEAD) for kin in result.history[-1]["cv_loss"])
        assert isinstance(result.model, Odd) == single


class TestRounds:
    def test_sources_train_once_and_take_at_most_one_probe(self):
        fed = federation(blobs(sources=3))
        made = method("auto", fed)
        model = 4 * fed.blocks.total
        made.run_round(1)
        assert fed.bytes_down == (3 + 1) * model
        fed.begin_round(3)
        made.run_round(3)
        assert fed.bytes_down == fed.bytes_up == 3 * model

    def test_the_warm_up_shows_the_sources_model(self):
        task, options = blobs(target_rows=12), {**QUICK, "rounds": 1, "warmup": 2}
        ours, theirs = (fb.run(task, name, **options).history for name in ("auto", "source-only"))
        for told, other in zip(ours[:2], theirs[:2], strict=True):
            assert told["loss"] == other["loss"]

    def test_distances_are_told_in_the_rounds_with_probes(self):
        told = fb.run(blobs(sources=3), "auto", **{**QUICK, "rounds": 4}).history
        assert [line["d2"] is not None for line in told] == [True, True, False, True]
        assert all(len(line["cosine"]) == 3 for line in told if line["cosine"])

    def test_choices_come_later_and_later(self, monkeypatch):
        made, asked = method("auto", federation()), []
        choose = made.side._choose
        monkeypatch.setattr(
            made.side, "_choose", lambda body: asked.append(made.federation.round) or choose(body)
        )
        for number in range(1, 21):
            made.federation.begin_round(number)
            made.run_round(number)
        assert asked == [1, 2, 4, 8, 16]

    def test_an_earlier_model_of_the_sources_stays_in_the_choice(self):
        """Sources that go on to something else lead away; what was good is kept."""
        task = fb.load_task("digits-none", n_target=30)
        fed = federation(task, model="mlp")
        side = method("auto", fed).side
        good = fb.run(task, "source-only", 4, workers=1, model="mlp")
        vector = nn.utils.parameters_to_vector(good.model.parameters()).detach()
        fed.begin_round(1)
        side.decide(News(State(vector, {}).tensors(), {"work": 0.0}))
        fed.begin_round(2)
        decision = side.decide(News(fed.initial.tensors(), {"work": 0.0}))
        assert torch.equal(side.best.parameters, vector)
        shares = decision.facts["weights"]
        assert sum(w for kin, w in shares.items() if kin.endswith("earlier")) > 0.5

    def test_networks_are_trained_and_linearised_when_there_is_work_left(self, monkeypatch):
        monkeypatch.setattr(module, "SHARE_OF_WORK", 1e6)
        monkeypatch.setattr(module, "LINEARISED_FROM", 1)
        rich = fb.run(blobs(target_rows=12), "auto", **QUICK).history[-1]["cv_loss"]
        monkeypatch.setattr(module, "SHARE_OF_WORK", 0.0)
        poor = fb.run(blobs(target_rows=12), "auto", **QUICK).history[-1]["cv_loss"]
        assert {kin.split(", ")[0] for kin in set(rich) - set(poor)} == {TUNED, ALONE, LINEARISED}
        assert NETWORK in rich

    def test_nothing_is_linearised_before_its_round_or_beyond_its_price(self):
        fed = federation(blobs(target_rows=12), "mlp:8")
        side = method("auto", fed).side
        body = side.bench.body(LAST, fed.initial)
        price = module.FITS_IN_ROWS + 36**2 / module.SLOPES_IN_ROWS
        for number, credit, there in (
            (15, price, False),
            (16, price - 1, False),
            (16, price, True),
        ):
            fed.begin_round(number)
            side.credit = credit
            assert bool(side._linearised(body)) == there
        assert side.credit == 0

    @pytest.mark.parametrize(("labels", "found"), [(12, [(TUNED, LIGHT)]), (61, [])])
    def test_little_work_left_pays_for_a_light_training_with_few_labels(
        self, monkeypatch, trained, labels, found
    ):
        monkeypatch.setattr(module, "FULL", Training((1.0,), (10**9,), 5))
        fed = federation(blobs(target_rows=labels), "mlp:8")
        side = method("auto", fed).side
        side.credit = 1.5 * side._price(LIGHT)
        fed.begin_round(1)
        side.decide(News(fed.initial.tensors(), {"work": 0.0}))
        assert trained == found
        assert (side.credit < side._price(LIGHT)) == bool(found)

    @pytest.mark.parametrize(
        ("labels", "round", "light"), [(20, 16, True), (21, 16, False), (21, 15, True)]
    )
    def test_beside_linearised_networks_a_light_training_is_for_fewer_labels(
        self, monkeypatch, trained, labels, round, light
    ):
        monkeypatch.setattr(module, "FULL", Training((1.0,), (10**9,), 5))
        fed = federation(blobs(target_rows=labels), "mlp:8")
        side = method("auto", fed).side
        side.credit = 2 * side._price(LIGHT)
        fed.begin_round(round)
        decision = side.decide(News(fed.initial.tensors(), {"work": 0.0}))
        assert (f"{LINEARISED}, {LAST}" in decision.facts["weights"]) == (round == 16)
        assert (TUNED in dict(trained)) == light

    def test_a_network_that_cannot_be_linearised_pays_nothing_for_it(self, monkeypatch):
        monkeypatch.setattr(Bench, "linearised", lambda bench, body: [])
        fed = federation(blobs(target_rows=12), "mlp:8")
        side = method("auto", fed).side
        side.credit = 1e9
        fed.begin_round(16)
        assert side._linearised(side.bench.body(LAST, fed.initial)) == []
        assert side.credit == 1e9
        assert LINEARISED in side.out

    def test_a_run_goes_on_to_the_bit_with_what_is_linearised(self, monkeypatch, tmp_path):
        monkeypatch.setattr(module, "SHARE_OF_WORK", 1e6)
        monkeypatch.setattr(module, "LINEARISED_FROM", 1)
        task, options = blobs(target_rows=12), {**QUICK, "out": tmp_path / "run"}
        fb.run(task, "auto", **{**options, "rounds": 5})
        again = fb.run(task, "auto", **{**options, "rounds": 7}, resume=True)
        whole = fb.run(task, "auto", **{**QUICK, "rounds": 7})
        assert again.history[-1]["weights"][f"{LINEARISED}, {LAST}"] > 0.01
        assert [line["loss"] for line in again.history] == [line["loss"] for line in whole.history]

    def test_no_light_training_replaces_a_full_one(self):
        fed = federation(blobs(target_rows=12), "mlp:8")
        side = method("auto", fed).side
        side.out = {LINEARISED}  # which would be paid for first
        side.credit = 2 * side._price(SHORT)
        fed.begin_round(1)
        side.decide(News(fed.initial.tensors(), {"work": 0.0}))
        full = {c.recipe for c in side.networks}
        assert full
        side.credit = 2 * side._price(LIGHT)
        fed.begin_round(2)
        side.decide(News(fed.initial.tensors(), {"work": 0.0}))  # sources rest, or are missing
        assert {c.recipe.slope for c in side.networks} <= set(SHORT.rates)

    def test_a_full_training_is_waited_for_where_sources_work_much(self, trained):
        fed = federation(blobs(target_rows=12), "mlp:8")
        side = method("auto", fed).side
        side.out = {LINEARISED}
        work = 1.01 * side._price(SHORT) / module.SHARE_OF_WORK / 4
        for number in (1, 2, 3, 4):
            fed.begin_round(number)
            side.decide(News(fed.initial.tensors(), {"work": work}))
            assert trained == ([(TUNED, SHORT)] if number == 4 else [])

    def test_a_linear_model_is_fitted_and_never_trained(self, monkeypatch):
        monkeypatch.setattr(module, "SHARE_OF_WORK", 1e6)
        told = fb.run(blobs(target_rows=12), "auto", **{**QUICK, "model": "linear"}).history[-1]
        assert not {kin for kin in told["cv_loss"] if TUNED in kin or NETWORK in kin}

    def test_sources_rest_when_nothing_needs_them(self, monkeypatch):
        """Two choices without a weight to speak of, from the eighth round on: after round 16."""
        monkeypatch.setattr(AutoTargetSide, "_drop", lambda side, *_: lonely(side))
        told = fb.run(blobs(sources=2), "auto", **{**QUICK, "rounds": 18}).history
        resting = [line["round"] for line in told if any("rest" in n for n in line["notes"])]
        assert resting == [17, 18]
        assert all((line["bytes_up"] == 0) == (line["round"] in resting) for line in told)

    def test_weight_without_sources_is_counted(self):
        side = method("auto", federation(blobs(target_rows=12))).side
        alone, led = Candidate(Recipe(ALONE), None), Candidate(Recipe(LED, LAST), None)
        for number, weights, lone in ((4, [1, 0], 0), (8, [1, 0], 1), (16, [0.9, 0.1], 0)):
            side.federation.begin_round(number)
            side._drop([alone, led], torch.tensor(weights))
            assert side.lone == lone

    def test_the_history_tells_what_it_stands_on(self):
        last = fb.run(blobs(target_rows=12), "auto", **{**QUICK, "rounds": 4}).history[-1]
        assert sum(last["weights"].values()) == pytest.approx(1)
        assert last["choice"] == max(last["weights"], key=last["weights"].get)
        assert set(last["cv_error"]) == set(last["cv_loss"]) == set(last["weights"])
        assert "12 labels" in last["said"]
        assert {kin.split(",")[0] for kin in last["weights"]} >= {LED, HEAD, INPUTS, ALONE}


class TestWorth:
    def worth(self, gain=0.1, error=0.05, rows=30, *, points=3.0, of_classes=True):
        return Worth(rows, 0.5, gain, error, points, 2.0, of_classes)

    def test_a_clear_gain_is_a_reason_to_join(self):
        assert self.worth(0.1, 0.05).decision == "join"
        assert self.worth(0.1, 0.1).decision == "unclear"

    def test_a_gain_that_still_rises_keeps_nobody_alone(self):
        """In as many rounds again it would rise by as much."""
        flat = self.worth(-0.03, 0.005)
        assert flat.decision == "alone"
        assert replace(flat, before=-0.04).decision == "alone"
        assert replace(flat, before=-0.08).decision == "unclear"
        assert replace(flat, before=0.05).decision == "alone", "one that falls is none"

    def test_what_was_gained_before_is_told_from_the_second_choice_on(self):
        told = fb.run(blobs(target_rows=24), "auto", **{**QUICK, "rounds": 4}).history
        gains = [line["worth"]["gain"] for line in told]
        before = [line["worth"]["before"] for line in told]
        assert before == [gains[0], gains[0], gains[0], gains[1]]  # choices are in rounds 1, 2, 4

    def test_surer_answers_alone_are_not(self):
        assert self.worth(0.1, 0.05, points=0.0).decision == "unclear"

    def test_a_gain_that_is_surely_small_is_none(self):
        assert self.worth(0.001, 0.002).decision == "alone"
        assert self.worth(0.001, 0.005).decision == "unclear"
        assert self.worth(-0.3, 0.05).decision == "alone"
        assert self.worth(0.0, 0.1).decision == "unclear"

    def test_what_is_small_depends_on_the_unit_of_numbers(self):
        assert self.worth(0.0, 0.007, of_classes=False).decision == "unclear"
        assert self.worth(0.0, 0.001, of_classes=False).decision == "alone"

    def test_few_rows_keep_nobody_from_joining(self):
        assert self.worth(-0.3, 0.05, rows=19).decision == "unclear"
        assert self.worth(0.3, 0.05, rows=10).decision == "join"

    def test_is_the_paired_difference_of_held_out_losses(self):
        bench = Bench(federation(blobs(target_rows=12)))
        made = [*bench.refit(bench.body(LAST, bench.federation.initial)), *bench.alone]
        weights = bench.weigh(made)
        worth = bench.worth(made, weights)
        own = torch.tensor([not c.recipe.body for c in made])
        held_out = torch.stack([c.held_out for c in made])
        ours, theirs = (
            torch.nn.functional.cross_entropy(
                (w[:, None, None] * held_out).sum(0), bench.rows.labels, reduction="none"
            )
            for w in (weights, weights * own / weights[own].sum())
        )
        assert worth.alone == pytest.approx(float(theirs.mean()))
        assert worth.gain == pytest.approx(float((theirs - ours).mean()))
        assert worth.error == pytest.approx(float((theirs - ours).std()) / 12**0.5)
        assert worth.rows == 12

    def test_is_unknown_where_one_kind_is_missing(self):
        bench = Bench(federation(blobs(target_rows=12)))
        alone = bench.alone
        assert bench.worth(alone, bench.weigh(alone)) is None

    def test_is_in_the_history_and_in_the_sentence(self):
        last = fb.run(blobs(target_rows=24), "auto", **{**QUICK, "rounds": 4}).history[-1]
        worth = Worth(**last["worth"])
        words = {"join": "worth it", "alone": "as well alone", "unclear": "do not tell"}
        assert words[worth.decision] in last["said"]
        assert f"{worth.points:+.0f} ± {worth.points_error:.0f} points" in last["said"]
        assert f"loss {-100 * worth.gain / worth.alone:+.0f}% ± " in last["said"]

    def test_the_sentence_names_the_heavier_side(self):
        side = method("auto", federation(blobs(target_rows=12))).side
        said = side._said({"alone": 0.4, "head, last": 0.35, "inputs, last": 0.25}, None)
        assert said.startswith("Mostly the sources' model with a last layer fitted anew")
        assert side._said({"alone": 0.6, "head, last": 0.4}, None).startswith("Mostly a linear")
        assert side._said({"alone": 1.0}, None).startswith("A linear model of the target alone")


class TestAlone:
    def test_no_source_does_anything(self):
        result = fb.run(blobs(target_rows=12), "alone-auto", **{**QUICK, "rounds": 3, "warmup": 1})
        training = [told for told in result.history if told["round"] >= 1]
        assert all(set(told["cv_loss"]) == {ALONE, NETWORK} for told in training)
        assert {told["bytes_up"] for told in result.history} == {0}
        assert training[0]["beta"] == [0.0] * 3
        assert training[0]["notes"] == training[-1]["notes"] == []

    def test_stays_as_it_is_after_the_first_round(self):
        told = fb.run(blobs(target_rows=12), "alone-auto", **{**QUICK, "rounds": 3}).history
        assert told[0]["weights"] == told[-1]["weights"]
        assert told[0]["loss"] == told[-1]["loss"]

    def test_is_the_part_of_auto_that_needs_nobody(self):
        task = blobs(target_rows=12)
        ours, whole = (
            fb.run(task, name, **{**QUICK, "model": "linear"}).history[-1]
            for name in ("alone-auto", "auto")
        )
        assert ours["cv_loss"][ALONE] == whole["cv_loss"][ALONE]

    def test_numbers_far_from_nought_are_no_harder(self):
        task = line()
        moved = replace(task, target=replace(task.target, y=task.target.y + 1000))
        options = {**QUICK, "model": "linear"}
        ours, same = (
            fb.run(some, "alone-auto", **options).history[-1]["cv_loss"][ALONE]
            for some in (moved, task)
        )
        assert ours == pytest.approx(same, rel=0.2)

    def test_one_label_is_too_few(self):
        task, options = line(), {**QUICK, "model": "linear", "batch_size_target": 1}
        one = replace(task, target=replace(task.target, x=task.target.x[:1], y=task.target.y[:1]))
        said = fb.run(one, "alone-auto", **options).history[-1]["said"]
        assert said.startswith("The model as it began")


class TestWhatComesOut:
    def test_follows_near_sources(self):
        result = fb.run(blobs(), "auto", **{**QUICK, "rounds": 10})
        assert sum(result.history[-1]["beta"]) > 0.4

    def test_leaves_sources_with_opposite_labels_alone(self):
        task = blobs(sources=2)
        for site in task.sources:
            site.y.copy_((site.y + 1) % 3)
        options = {**QUICK, "rounds": 15, "lr": 0.3, "batch_size_target": 4}
        auto, alone, led = (
            fb.run(task, name, **options).accuracy
            for name in ("auto", "target-only", "source-only")
        )
        assert led < 20
        assert auto >= alone - 3

    def test_gives_a_hostile_source_little_weight_among_good_ones(self):
        task = blobs(sources=4)
        task.sources[2].y.copy_((task.sources[2].y + 1) % 3)
        result = fb.run(task, "auto", **{**QUICK, "rounds": 10})
        shares = torch.tensor(result.history[-1]["beta"])
        assert float(shares[2]) < 0.5 * float(shares.mean())

    def test_works_with_one_target_row_per_class(self):
        corners, y = torch.tensor([[1.0, 1.0], [-1.0, -1.0]]), torch.arange(20) % 2
        noise = torch.randn(20, 2, generator=torch.Generator().manual_seed(0))
        rows = (corners[y] + 0.3 * noise, y)
        task = fb.FederatedTask.from_arrays([rows], (corners, torch.arange(2)), rows)
        result = fb.run(task, "auto", **{**QUICK, "rounds": 10})
        assert result.history[-1]["failures"] == {}
        assert result.summary["accuracy_last"] == 100

    def test_one_label_is_too_few_to_judge_by(self):
        task, options = line(), {**QUICK, "model": "linear", "batch_size_target": 1}
        one = replace(task, target=replace(task.target, x=task.target.x[:1], y=task.target.y[:1]))
        result = fb.run(one, "auto", **options)
        assert result.history[-1]["choice"] == f"{LED}, {LAST}"
        assert "one label" in result.history[-1]["said"]

    @pytest.mark.parametrize("policy", ["target", "keep", "frozen"])
    def test_kept_buffers_are_kept(self, policy):
        fed = federation(model=Normed(), method="auto", buffers=policy)
        made = method("auto", fed)
        made.run_round(1)
        mean = "norm.running_mean"
        members = made.model.members if isinstance(made.model, Blend) else (made.model,)
        for state in (made.led, *members):
            kept = torch.equal(state.buffers[mean], fed.initial.buffers[mean])
            assert kept == (policy != "target")

    def test_trains_values_too(self):
        result = fb.run(line(), "auto", **{**QUICK, "model": "linear", "rounds": 20})
        assert result.summary["loss"] < 1.0

    def test_goes_on_alone_when_sources_lead_astray(self):
        task = line()
        for site in task.sources:
            site.y.mul_(1e4)
        options = {**QUICK, "model": "linear", "rounds": 6, "lr": 0.6, "lr_target": 0.01}
        auto, alone = (fb.run(task, name, **options) for name in ("auto", "target-only"))
        assert auto.summary["loss"] < 1.5 * alone.summary["loss"]

    def test_beta_is_the_part_that_sources_have(self):
        for told in fb.run(blobs(), "auto", **{**QUICK, "rounds": 4}).history:
            own = sum(w for kin, w in told["weights"].items() if kin.startswith(ALONE))
            assert sum(told["beta"]) == pytest.approx(1 - own)


def test_recipes_are_told_apart_by_family_and_body():
    assert Recipe(LED, LAST).kin == "led, last"
    assert Recipe(ALONE).kin == ALONE
