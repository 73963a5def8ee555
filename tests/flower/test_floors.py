"""What a site does not do, whoever asks: above all, its rows are not read off one message."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pretend import PretendGrid, nodes_of, run_over_pretended_flower
from small import blobs

import fedbridge as fb
from fedbridge import methods
from fedbridge.base.errors import OptionError
from fedbridge.data.site_package import sites_of
from fedbridge.flower.floors import OPEN, Floors, floors_in, singles_out
from fedbridge.flower.messages import RequestError, RunSpec
from fedbridge.flower.site import SiteMemory, SiteWorker
from fedbridge.training.job import Job, LocalPlan
from fedbridge.training.state import State
from fedbridge.training.target_side import News

DOCS = Path(__file__).parents[2] / "docs" / "deploy.md"
TRAVELLING = [name for name in methods.names() if methods.class_of(name).travels]
SPEC = RunSpec("r", 0, "target", ("site 0",), "fedavg", {}, {}, "linear")


def task_of(rows=30, target_rows=30):
    return blobs(sources=1, rows=rows, target_rows=target_rows)


def worker(tmp_path, *, floors=None, which=1, task=None, **changes):
    site = sites_of(task or task_of())[which]
    memory = SiteMemory(tmp_path, "r", site.name)
    return SiteWorker(site, replace(SPEC, **changes), memory, floors=floors)


def ask(doing, *jobs):
    """All jobs in one message; a coordinator may begin with any model, such as one of zeros."""
    start = doing.federation.initial
    return doing.train(1, jobs, [State(torch.zeros_like(start.parameters), start.buffers)])


def probe(batch, seed=0, client=1, **plan):
    return Job(client, LocalPlan(batch_size=batch, **plan), seed, "probe", max_batches=1)


def train(batch, seed=0, client=1, **plan):
    return Job(client, LocalPlan(batch_size=batch, **plan), seed)


def first_batch(doing, job):
    """The rows of a job's first step."""
    return next(doing.federation.bench.batches(job, 1)).tolist()


def rows_read(vectors, x):
    """How many of the rows can be read off: in a gradient of one row, weight over bias is it."""
    found = set()
    for vector in vectors:
        weight, bias = vector[:6].view(3, 2), vector[6:9]
        guess = weight[bias.abs().argmax()] / bias[bias.abs().argmax()]
        near = (x - guess).norm(dim=1)
        if near.min() < 1e-3:
            found.add(int(near.argmin()))
    return len(found)


class TestTheAttack:
    JOBS = tuple(probe(1, seed) for seed in range(200))

    def test_without_floors_it_reads_every_row(self, tmp_path):
        doing = worker(tmp_path, floors=OPEN)
        vectors = [d.result.vector for d in ask(doing, *self.JOBS).deliveries]
        assert rows_read(vectors, doing.site.train.x) == 30

    @pytest.mark.parametrize(
        "jobs",
        [
            JOBS,
            JOBS[:1],
            (train(1, steps=1),),
            (train(1, steps=7),),
            (train(2, steps=1),),
            tuple(probe(8, seed) for seed in range(200)),
            (train(30), train(29, drop_last=True)),
            (train(30), probe(29, drop_last=True)),
            (replace(probe(8), max_batches=2), replace(probe(8), max_batches=3)),
        ],
        ids=[
            "200 single rows",
            "one single row",
            "one step on one",
            "fewer steps than rows",
            "two rows",
            "200 sums, to be solved for the rows",
            "all rows and all but one",
            "the same by a probe",
            "one batch more",
        ],
    )
    def test_with_the_usual_floors_it_is_refused(self, jobs, tmp_path):
        with pytest.raises(RequestError, match="site's"):
            ask(worker(tmp_path), *jobs)

    def test_sums_of_a_small_sites_rows_are_not_solved_for_them(self, tmp_path):
        """Half of four rows by four seeds: pairs, of which three with a row each in common do."""
        doing = worker(tmp_path, task=task_of(rows=4))
        jobs = [train(2, seed, steps=1) for seed in range(40)]
        pairs = {tuple(sorted(first_batch(doing, job))): job for job in jobs}
        with pytest.raises(RequestError, match="solved for one of this site's rows"):
            ask(doing, pairs[0, 1], pairs[1, 2], pairs[0, 2])

    @pytest.mark.parametrize(
        ("settings", "jobs"),
        [
            ({"class_weights": [1.0, 0.0, 0.0]}, (train(10, client=0),)),
            (
                {"early_stopping": 1, "validation_fraction": 0.97},
                (train(10, client=0),),
            ),
        ],
        ids=["rows of one class", "all but one set aside"],
    )
    def test_the_settings_of_a_run_are_no_way_around_them(self, settings, jobs, tmp_path):
        task = task_of(target_rows=21)
        doing = worker(tmp_path, which=0, task=task, method="auto", settings=settings)
        with pytest.raises(RequestError, match="rows in an update"):
            ask(doing, *jobs)

    def test_a_target_does_not_choose_by_a_single_row(self, tmp_path):
        settings = {"early_stopping": 1, "validation_fraction": 0.97}
        task = task_of(target_rows=21)
        doing = worker(tmp_path, which=0, task=task, method="auto", settings=settings)
        with pytest.raises(RequestError, match="rows to choose by"):
            doing.decide(1, News(doing.federation.initial.tensors(), {"work": 1.0}))

    def test_weights_of_a_job_count_for_nothing(self, tmp_path):
        done = [
            ask(worker(tmp_path), train(10, class_weights=weights)).deliveries[0].result.vector
            for weights in (None, (1.0, 0.0, 0.0))
        ]
        assert torch.equal(*done)


class TestSketches:
    def sent(self, tmp_path, rows, batch):
        doing = worker(tmp_path, which=0, task=task_of(target_rows=rows))
        done = ask(doing, train(batch, client=0, noise="sketch"))
        return done.deliveries[0].result.outcome, done.note

    def test_leave_where_every_batch_has_rows_enough(self, tmp_path):
        outcome, note = self.sent(tmp_path, 22, 10)
        assert (outcome.sketches is not None, note) == (True, None)

    def test_stay_where_the_last_batch_is_a_single_row(self, tmp_path):
        """A small model's sketch of it is that row's gradient, exactly."""
        outcome, note = self.sent(tmp_path, 21, 10)
        assert outcome.sketches is None
        assert outcome.noise is not None
        assert "a single row" in note

    @pytest.mark.parametrize("jobs", [2, 4])
    def test_stay_where_several_jobs_together_could_be_solved_for_a_row(self, jobs, tmp_path):
        """Pairs of rows, by several seeds: their differences and sums are single rows."""
        doing = worker(tmp_path, which=0, task=task_of(target_rows=20))
        asked = [train(2, seed, client=0, noise="sketch") for seed in range(jobs)]
        sketches = [d.result.outcome.sketches for d in ask(doing, *asked).deliveries]
        assert all((sketch is None) == (jobs == 4) for sketch in sketches)

    def test_and_the_run_goes_on(self, tmp_path):
        task = blobs(target_rows=17)
        strategy, _ = run_over_pretended_flower(
            task, "fedgp-joint", 2, tmp_path, model="linear", lr=0.1, batch_size_target=8
        )
        assert [line["failures"] for line in strategy.result.history] == [{}, {}]
        assert any("a single row" in note for note in strategy.result.history[0]["notes"])


class TestSinglingOut:
    @pytest.mark.parametrize(
        ("sums", "solved"),
        [
            ([[1, 1, 1]], False),
            ([[1, 1, 1], [1, 1, 0]], True),
            ([[1, 1, 0], [0, 1, 1]], False),
            ([[1, 1, 0], [0, 1, 1], [1, 0, 1]], True),
            ([[1, 1, 0], [1, 1, 0]], False),
            ([[1, 1, 4], [4, 1, 1]], False),
            ([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 1, 0]], False),
        ],
        ids=str,
    )
    def test_is_solving_for_one_row(self, sums, solved):
        assert singles_out(torch.tensor(sums, dtype=torch.float64)) == solved


class TestHonestRuns:
    @pytest.mark.parametrize("rows", [2, 4, 5, 9, 33])
    @pytest.mark.parametrize("method", TRAVELLING)
    def test_every_method_runs_with_the_usual_batches(self, method, rows, tmp_path):
        task = blobs(sources=2, rows=33, target_rows=rows)
        try:
            fb.run(task, method, 1, model="linear", workers=1)
        except fb.FedbridgeError:
            pytest.skip("it does not run on one machine either")
        strategy, _ = run_over_pretended_flower(task, method, 1, tmp_path, model="linear")
        assert strategy.result.history[0]["failures"] == {}

    @pytest.mark.parametrize("rows", [4, 7, 8, 15])
    def test_a_small_target_may_have_small_batches(self, rows, tmp_path):
        task = blobs(target_rows=rows)
        strategy, _ = run_over_pretended_flower(
            task, "auto", 2, tmp_path, model="linear", batch_size_target=max(1, rows // 4)
        )
        assert [line["failures"] for line in strategy.result.history] == [{}, {}]


class TestLimits:
    @pytest.mark.parametrize(
        ("job", "name"),
        [
            (train(10, epochs=101), "most-epochs"),
            (train(10, steps=304), "most-epochs"),
            (train(10, epochs=100, steps=200_000), "most-steps"),
        ],
    )
    def test_long_trainings_are_refused(self, job, name, tmp_path):
        with pytest.raises(RequestError, match=name):
            ask(worker(tmp_path), job)

    def test_messages_come_to_an_end_over_all_runs(self, tmp_path):
        floors = Floors(most_rounds=2)
        for run in ("a", "b"):
            ask(worker(tmp_path, floors=floors, run=run), train(10))
        with pytest.raises(RequestError, match="at most 2 messages to train, but got 3"):
            ask(worker(tmp_path, floors=floors, run="c"), train(10))
        asked = tmp_path / "asked.json"
        assert json.loads(asked.read_text()) == {"train": 2}
        assert asked.stat().st_mode & 0o777 == 0o600

    def test_so_do_measurements(self, tmp_path):
        doing = worker(tmp_path, which=0, floors=Floors(most_rounds=1))
        doing.evaluate(1, doing.federation.initial)
        with pytest.raises(RequestError, match="messages to measure"):
            doing.evaluate(1, doing.federation.initial)

    @pytest.mark.parametrize("content", ["[]", "{", '{"train": -1}', '{"train": "x"}'])
    def test_a_damaged_count_is_not_begun_anew(self, content, tmp_path):
        (tmp_path / "asked.json").write_text(content)
        with pytest.raises(fb.FedbridgeError, match="count of answered messages"):
            ask(worker(tmp_path), train(10))

    def test_a_message_of_many_records_is_not_opened(self, tmp_path):
        nodes = nodes_of(blobs(), tmp_path)
        nodes[1].config["most-records"] = 1
        strategy, _ = run_over_pretended_flower(
            blobs(), "fedavg", 1, tmp_path, PretendGrid(nodes), model="linear", batch_size=8
        )
        (line,) = strategy.result.history
        assert "at most 1 records in a message, but got 2" in line["failures"]["site 0"]


class TestSettings:
    def test_what_is_not_said_is_as_usual(self):
        assert floors_in({"data": "x"}) == Floors()
        assert floors_in({"least-batch": 5}) == Floors(least_batch=5)

    @pytest.mark.parametrize(
        "config", [{"least-bach": 1}, {"most_jobs": 1}, {"least-rows": 0}, {"most-jobs": "4"}]
    )
    def test_slips_are_errors(self, config):
        with pytest.raises(OptionError):
            floors_in(config)

    def test_the_documents_have_the_defaults(self):
        rows = re.findall(r"^\| `((?:least|most)-\w+)` \| (\d+) \|", DOCS.read_text(), re.MULTILINE)
        assert {name: int(value) for name, value in rows} == Floors().config()

    def test_what_allows_more_than_usual_is_known(self):
        assert Floors(least_batch=1, least_rows=9, most_jobs=99, most_rounds=1).weaker() == [
            "least-batch = 1",
            "most-jobs = 99",
        ]
