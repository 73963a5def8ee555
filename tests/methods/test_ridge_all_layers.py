"""A network moved a little in all its layers: derivatives, fits and secants against plain torch."""

import subprocess
import sys

import pytest
import torch
from small import Normed, blobs, federation
from torch import nn
from torch.func import functional_call
from torch.nn import functional

import fedbridge as fb
from fedbridge.methods import candidates
from fedbridge.methods.candidates import HEAD, LAST, LINEARISED, Bench, Recipe, Sum
from fedbridge.methods.ridge import Rows, Tangents, jacobians, ridge, secant
from fedbridge.training.state import State


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 3))


def rows_of(labels, folds=4):
    fold_of = torch.arange(len(labels)) % folds
    weights = torch.stack([(fold_of != k).double() for k in range(folds)])
    return Rows(labels, 3, weights, fold_of, torch.ones(len(labels)).double())


def vector_of(model):
    return nn.utils.parameters_to_vector(model.parameters()).detach()


class TestJacobians:
    @pytest.mark.parametrize("normed", [False, True])
    def test_are_the_derivatives_of_every_output_of_every_row(self, model, normed):
        model = Normed() if normed else model
        model.eval()
        x = torch.randn(20, 2)
        found = jacobians(model, x)
        for i in (0, 7, 19):
            for k in range(found.shape[1]):
                parts = torch.autograd.grad(model(x[i : i + 1])[0, k], list(model.parameters()))
                expected = torch.cat([part.flatten() for part in parts])
                torch.testing.assert_close(found[i, k], expected)

    def test_are_had_of_attention(self):
        torch.manual_seed(0)

        class Attending(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)

            def forward(self, x):
                return self.body(x).mean(1)

        model, x = Attending().eval(), torch.randn(3, 2, 4)
        found = jacobians(model, x)
        parts = torch.autograd.grad(model(x[1:2])[0, 2], list(model.parameters()))
        torch.testing.assert_close(found[1, 2], torch.cat([part.flatten() for part in parts]))

    def test_in_what_has_no_part_in_an_answer_are_nought(self, model):
        x = torch.randn(3, 2)
        plain = jacobians(model, x)
        model.spare = nn.Linear(2, 2)
        model.forward = lambda rows: model[2](model[1](model[0](rows)))
        torch.testing.assert_close(jacobians(model, x)[..., : plain.shape[2]], plain)
        assert bool((jacobians(model, x)[..., plain.shape[2] :] == 0).all())

    def test_need_no_compiler_whose_loading_takes_a_second(self):
        code = (
            "import sys, torch; from fedbridge.methods.ridge import jacobians; "
            "jacobians(torch.nn.Linear(2, 3), torch.ones(4, 2)); "
            "sys.exit('torch._dynamo' in sys.modules)"
        )
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class TestFits:
    @pytest.fixture
    def slopes(self, model):
        return jacobians(model, torch.randn(16, 2, generator=torch.Generator().manual_seed(1)))

    def by_descent(self, slopes, given, labels, strength, weights):
        """The fit in the parameters themselves, by plain L-BFGS."""
        slopes = slopes.double() / slopes.double().square().sum(2).mean().sqrt()
        change = torch.zeros(slopes.shape[2], dtype=torch.float64, requires_grad=True)
        solver = torch.optim.LBFGS([change], max_iter=500, line_search_fn="strong_wolfe")

        def loss():
            solver.zero_grad()
            each = functional.cross_entropy(given + slopes @ change, labels, reduction="none")
            total = (weights * each).sum() + strength / 2 * change.square().sum()
            total.backward()
            return total

        solver.step(loss)
        return given + slopes @ change.detach()

    @pytest.mark.parametrize("strength", [0.1, 1.0])
    def test_are_those_in_the_parameters(self, slopes, strength):
        labels, given = torch.arange(16) % 3, torch.randn(16, 3, dtype=torch.float64)
        rows, strengths = rows_of(labels), torch.tensor([strength], dtype=torch.float64)
        axes = Tangents.at(slopes)
        whole, held_out = ridge(axes, given[None], strengths, rows)
        (change,) = axes.layer(whole)
        expected = self.by_descent(slopes, given, labels, strength, rows.all)
        said = torch.softmax(given + slopes.double() @ change.double(), 1)
        torch.testing.assert_close(said, torch.softmax(expected, 1), atol=5e-3, rtol=0)
        for fold, weights in enumerate(rows.weights):
            apart = self.by_descent(slopes, given, labels, strength, weights)
            out = rows.fold_of == fold
            shares = torch.softmax(held_out[0][out], 1)
            torch.testing.assert_close(shares, torch.softmax(apart[out], 1), atol=2e-2, rtol=0)

    def test_do_not_depend_on_the_size_of_the_slopes(self, slopes):
        labels, given = torch.arange(16) % 3, torch.zeros(1, 16, 3, dtype=torch.float64)
        found = []
        for size in (1.0, 100.0):
            axes = Tangents.at(size * slopes)
            whole, _ = ridge(axes, given, torch.tensor([1.0]).double(), rows_of(labels))
            found.append(size * axes.layer(whole))
        torch.testing.assert_close(*found, rtol=1e-3, atol=1e-4)

    def test_a_network_that_answers_nothing_has_no_axes(self):
        axes = Tangents.at(torch.zeros(4, 3, 7))
        assert axes.rows.shape[1] == 0


class TestSecant:
    def test_says_what_the_derivative_says(self, model):
        change, x = 0.3 * torch.randn(len(vector_of(model))), torch.randn(30, 2)
        pairs = secant(State(vector_of(model), {}), change)
        assert len(pairs) == 2
        said = torch.zeros(30, 3)
        for state, factor in pairs:
            parts = state.parameters.split([p.numel() for p in model.parameters()])
            named = dict(model.named_parameters())
            held = {
                name: part.view_as(value)
                for (name, value), part in zip(named.items(), parts, strict=True)
            }
            said += factor * functional_call(model, held, (x,)).detach()
        torch.testing.assert_close(said, jacobians(model, x) @ change, atol=1e-4, rtol=1e-3)

    def test_of_no_change_is_nothing(self, model):
        assert secant(State(vector_of(model), {}), torch.zeros(len(vector_of(model)))) == []


class TestCandidates:
    def test_the_model_says_what_was_fitted(self):
        fed = federation(blobs(target_rows=30), "mlp:8")
        bench = Bench(fed)
        body = bench.body(LAST, fed.initial)
        slopes = bench._slopes_at(body)
        found = bench.linearised(body)
        assert len(found) == len(candidates.ALL_LAYERS)
        for candidate in found:
            blend = Sum.of(bench, [(candidate, 1.0)]).blend({LAST: fed.initial})
            said = fed.bench.predict(blend, fed.task.target)
            expected = candidate.recipe.slope * body.outputs + slopes @ candidate.change
            assert float((said - expected).abs().mean()) < 0.03 * float(expected.abs().mean())

    def test_what_does_not_train_does_not_move(self):
        model = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 3))
        model[0].weight.requires_grad_(False)
        fed = federation(blobs(target_rows=12), model)
        bench = Bench(fed)
        (candidate, *_) = bench.linearised(bench.body(LAST, fed.initial))
        assert candidate.change.shape == fed.initial.parameters.shape
        blend = Sum.of(bench, [(candidate, 1.0)]).blend({LAST: fed.initial})
        assert bool(fed.predict(blend, fed.task.test).isfinite().all())

    def test_noise_that_is_drawn_anew_is_seen_twice(self):
        task = fb.load_task("digits-noise", n_target=12, noise_draw="redrawn")
        bench = Bench(federation(task, "mlp:8"))
        assert bench.draws == 2
        slopes = bench._slopes_at(bench.body(LAST, bench.federation.initial))
        assert slopes.shape[:2] == (24, 10)
        assert not torch.equal(slopes[:12], slopes[12:])

    @pytest.mark.parametrize("model", ["linear", "mlp:8"])
    def test_a_linear_model_has_none_because_its_head_is_all_of_it(self, model):
        assert bool(Bench(federation(blobs(), model)).slopes) == (model != "linear")

    def test_too_many_slopes_are_none(self, monkeypatch):
        monkeypatch.setattr(candidates, "MOST_SLOPES", 35)
        assert Bench(federation(blobs(target_rows=12), "mlp:8")).slopes == 0
        monkeypatch.setattr(candidates, "MOST_SLOPES", 36)
        assert Bench(federation(blobs(target_rows=12), "mlp:8")).slopes == 36

    @pytest.mark.parametrize("odd", ["asks for a value", "batches", "squeezes", "no slope"])
    def test_a_network_that_cannot_be_derived_row_by_row_has_none(self, odd):
        class Stubborn(nn.Module):
            def __init__(self):
                super().__init__()
                self.head = nn.Linear(2, 3)
                self.norm = nn.BatchNorm1d(2, track_running_stats=False)

            def forward(self, x):
                if odd == "asks for a value":
                    x = torch.tanh(x) if x.sum().item() > 0 else x
                x = self.norm(x) if odd == "batches" else x
                outputs = self.head(x.squeeze() if odd == "squeezes" else x)
                if odd == "no slope":  # a square root at nought
                    outputs = outputs + (outputs - outputs.detach()).square().sum(1).sqrt()[:, None]
                return outputs

        fed = federation(blobs(target_rows=12), Stubborn())
        bench = Bench(fed)
        assert bench.linearised(bench.body(LAST, fed.initial)) == []

    def test_all_layers_follow_turned_images_better_than_the_last_one(self):
        """What the papers claim, on digits that are turned by 30 degrees, with 30 labels."""
        gains = []
        for seed in (0, 1):
            task = fb.load_task("digits-rotation", angle=30.0, n_target=30, seed=seed)
            made = fb.run(task, "source-only", 10, seed, workers=1)
            fed = federation(task, model=made.model, seed=seed)
            bench = Bench(fed)
            body = bench.body(LAST, fed.initial)
            found = {
                family: max(
                    fed.measure(Sum.of(bench, [(c, 1.0)]).blend({LAST: fed.initial})).accuracy
                    for c in of
                )
                for family, of in {
                    HEAD: bench._fitted([Recipe(HEAD, LAST, a, 0.03) for a in (0.5, 1.0)], body),
                    LINEARISED: bench.linearised(body),
                }.items()
            }
            gains.append(found[LINEARISED] - found[HEAD])
        assert sum(gains) / len(gains) > 2, gains
