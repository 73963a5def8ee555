"""What a site does with what is asked of it, good or bad, and what it remembers."""

import json
from dataclasses import asdict, replace

import pytest
import torch
from pretend import PretendGrid, nodes_of, run_over_pretended_flower
from safetensors.torch import save
from small import blobs, same_model

import fedbridge as fb
from fedbridge.core.blocks import parameter_vector
from fedbridge.data.site_package import load_site, save_site, sites_of
from fedbridge.evaluation.metrics import Evaluation
from fedbridge.flower.client import discreet
from fedbridge.flower.floors import Floors
from fedbridge.flower.messages import (
    RequestError,
    RunSpec,
    SiteError,
    job_of_json,
    jobs_to_json,
    read,
)
from fedbridge.flower.privacy import LocalPrivacy
from fedbridge.flower.site import SiteMemory, SiteWorker
from fedbridge.methods.kd3a import Vote
from fedbridge.runs.folder import RunFolder
from fedbridge.runs.record import read_run
from fedbridge.training.job import Job, LocalPlan
from fedbridge.training.objective import Proximal
from fedbridge.training.target_side import News
from fedbridge.workflows.predict import load_model

ORDERS = RunSpec("r", 0, "target", ("site 0", "site 1", "site 2"), "fedavg", {}, {}, "linear")


def worker(tmp_path, which=1, **changes):
    site = sites_of(blobs())[which]
    return SiteWorker(site, replace(ORDERS, **changes), SiteMemory(tmp_path, "r", site.name))


def voting(tmp_path, rows=40, **site):
    """A target with some rows without labels, in a run that has its sources vote on them."""
    own = sites_of(blobs(target_rows=rows + 10, n_target=10))[0]
    memory = SiteMemory(tmp_path, "r", own.name)
    return SiteWorker(own, replace(ORDERS, method="kd3a"), memory, **site)


def news_of(state):
    return News(state.tensors(), {"work": 1e4})


class TestOrders:
    def test_travel_as_json(self):
        assert RunSpec.of_json(json.loads(json.dumps(asdict(ORDERS)))) == ORDERS

    def test_jobs_travel_as_json(self):
        job = Job(
            2, LocalPlan(noise="sketch", class_weights=(0.5, 1.5)), 7, "probe", 1, max_batches=3,
            objective=Proximal(0.1), anchor=0, moves=((0, 4),), keeps=((4, 9),),
        )  # fmt: skip
        after = replace(job, first=replace(job, seed=8, moves=((4, 9),), keeps=()))
        for sent in (job, after):
            (record,) = json.loads(json.dumps(jobs_to_json([sent])))
            assert job_of_json(record) == sent

    @pytest.mark.parametrize(
        "change",
        [
            {"kind": "steal"},
            {"seed": "x"},
            {"plan": {}},
            {"plan": {**vars(LocalPlan()), "lr": -1}},
            {"plan": {**vars(LocalPlan()), "optimizer": "__import__"}},
            {"plan": {**vars(LocalPlan()), "noise": "all batches"}},
            {"keeps": [[0]]},
            {"first": {}},
            {"first": jobs_to_json([Job(1, LocalPlan(), 0, moves=((0, 2),))])[0]},
        ],
        ids=str,
    )
    def test_nonsense_is_refused(self, change):
        (record,) = jobs_to_json([Job(1, LocalPlan(), 0)])
        with pytest.raises(fb.FedbridgeError):
            job_of_json({**record, **change})

    def test_jobs_on_chosen_rows_do_not_travel(self):
        with pytest.raises(RequestError, match="rows"):
            jobs_to_json([Job(1, LocalPlan(), 0, rows=torch.arange(3))])

    @pytest.mark.parametrize("text", ["", "[]", "{", "7", "[" * 100_000], ids=range(5))
    def test_what_is_no_object_is_refused(self, text):
        with pytest.raises(RequestError):
            read(text)


def test_what_went_wrong_stays_at_the_site_and_its_terminal_obeys_nothing(caplog):
    def handle(message, context):
        raise ValueError("row 3: \x1b[2J")

    with pytest.raises(SiteError) as told:
        discreet(handle)(None, None)
    assert "row 3" not in str(told.value)
    assert "row 3" in caplog.text
    assert "\x1b" not in caplog.text


class TestASiteRefuses:
    def test_orders_for_others(self, tmp_path):
        with pytest.raises(RequestError, match="agree on names"):
            worker(tmp_path, sources=("A", "B"))

    def test_another_role(self, tmp_path):
        with pytest.raises(RequestError, match="takes it for"):
            worker(tmp_path, target="site 0", sources=("target", "site 1"))

    @pytest.mark.parametrize(
        "model", ["os:system", "torch.hub:load", "resnet18:/etc/passwd", "mlp:8; rm", None]
    )
    def test_models_that_are_not_built_in(self, model, tmp_path):
        with pytest.raises(RequestError, match="built-in"):
            worker(tmp_path, model=model)

    def test_jobs_of_another_site(self, tmp_path):
        doing = worker(tmp_path)
        with pytest.raises(RequestError, match="jobs for site"):
            doing.train(1, [Job(3, LocalPlan(), 0)], [doing.federation.initial])

    def test_rows_without_labels_where_there_are_none_or_in_several_jobs(self, tmp_path):
        job = Job(4, LocalPlan(), 0)
        for doing, jobs in (
            (worker(tmp_path, 0, method="kd3a"), [job]),
            (voting(tmp_path), [job, job]),
            (voting(tmp_path), [job, Job(0, LocalPlan(), 0)]),
            (voting(tmp_path), [Job(0, LocalPlan(), 0, beside=(1,))]),
        ):
            with pytest.raises(RequestError, match=r"jobs for site|one job a message"):
                doing.train(1, jobs, [doing.federation.initial])

    @pytest.mark.parametrize("spoilt", ["size", "count", "nan"])
    def test_a_vote_of_what_are_no_models_of_the_run(self, spoilt, tmp_path):
        doing = voting(tmp_path)
        start = doing.federation.initial
        models = torch.stack([start.parameters] * (9 if spoilt == "count" else 2))
        models = models[:, :-1] if spoilt == "size" else models
        models = models * torch.nan if spoilt == "nan" else models
        job = Job(4, LocalPlan(), 0, objective=Vote(models, {}, 0.5, 1))
        with pytest.raises(RequestError, match="a vote of models of this run"):
            doing.train(1, [job], [start])

    def test_a_vote_that_its_privacy_does_not_cover(self, tmp_path):
        doing = voting(tmp_path, privacy=LocalPrivacy(1.0, 1.0))
        start = doing.federation.initial
        vote = Vote.of_models([start] * 3, 0.5, 1)
        with pytest.raises(RequestError, match="privacy covers"):
            doing.train(1, [Job(4, LocalPlan(), 0, objective=vote)], [start])

    def test_a_vote_on_fewer_unlabelled_rows_than_its_floors_allow(self, tmp_path):
        doing = voting(tmp_path, floors=Floors(least_rows=20), rows=16)
        start = doing.federation.initial
        vote = Vote.of_models([start] * 3, 0.5, 1)
        plan = LocalPlan(batch_size=4, steps=1)
        with pytest.raises(RequestError, match="rows in an update"):
            doing.train(1, [Job(4, plan, 0, objective=vote)], [start])

    @pytest.mark.parametrize("keeps", [((0, 99),), ((-1, 2),), ((4, 2),)], ids=str)
    def test_parts_that_no_model_has(self, keeps, tmp_path):
        doing = worker(tmp_path)
        with pytest.raises(RequestError, match="one part of the model"):
            doing.train(1, [Job(1, LocalPlan(), 0, keeps=keeps)], [doing.federation.initial])

    def test_another_part_than_it_keeps(self, tmp_path):
        doing = worker(tmp_path)
        for number, end in ((1, 3), (2, 4)):
            job = Job(1, LocalPlan(), 0, keeps=((0, end),))
            if number == 2:
                with pytest.raises(RequestError, match="the same part"):
                    doing.train(number, [job], [doing.federation.initial])
            else:
                doing.train(number, [job], [doing.federation.initial])

    def test_jobs_on_models_that_were_not_sent(self, tmp_path):
        doing = worker(tmp_path)
        with pytest.raises(RequestError, match="models"):
            doing.train(1, [Job(1, LocalPlan(), 0, slot=4)], [doing.federation.initial])

    @pytest.mark.parametrize(("which", "method"), [(1, "auto"), (0, "fedavg")])
    def test_to_decide_where_there_is_nothing_to_decide(self, which, method, tmp_path):
        doing = worker(tmp_path, which, method=method)
        with pytest.raises(RequestError, match="whose target decides"):
            doing.decide(1, news_of(doing.federation.initial))

    @pytest.mark.parametrize("method", ["auto", "offset"])
    @pytest.mark.parametrize(
        "tensors",
        [
            lambda known: {**known, "parameters": known["parameters"] * torch.nan},
            lambda known: {**known, "parameters": known["parameters"][:1]},
            lambda known: {**known, "parameters": known["parameters"].double()},
            lambda known: {**known, "scales": torch.ones(1)},
            lambda known: {},
        ],
        ids=["NaN", "another shape", "another type", "an array too many", "nothing"],
    )
    def test_news_of_another_model(self, tensors, method, tmp_path):
        doing = worker(tmp_path, 0, method=method)
        with pytest.raises(RequestError, match="news of a model"):
            doing.decide(1, News(tensors(doing.federation.initial.tensors()), {"work": 1.0}))
        assert not [*tmp_path.rglob("*.safetensors")], "nothing of it is remembered"

    @pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), "x", None, True, [1]])
    def test_news_that_are_no_numbers(self, value, tmp_path):
        doing = worker(tmp_path, 0, method="auto")
        with pytest.raises(RequestError, match="numbers of at least 0"):
            doing.decide(1, News(doing.federation.initial.tensors(), {"work": value}))


class TestMemory:
    def test_keeps_the_last_two_rounds(self, tmp_path):
        memory = SiteMemory(tmp_path, "run", "A")
        for number in range(1, 5):
            memory.save("home", number, {"x": torch.tensor([number])}, {"n": number})
        found = memory.load("home", before=5)
        assert (found.round, int(found.tensors["x"]), found.facts) == (4, 4, {"n": 4})
        assert memory.load("home", before=4).round == 3
        assert memory.load("home", before=3) is None

    def test_a_run_that_goes_back_leaves_later_rounds_behind(self, tmp_path):
        memory = SiteMemory(tmp_path, "run", "A")
        for number in (8, 9, 1, 2):
            memory.save("home", number, {"x": torch.tensor([number])}, {})
        assert memory.load("home", before=10).round == 2
        assert memory.load("home", before=2).round == 1

    def test_warm_up_rounds_count_too(self, tmp_path):
        memory = SiteMemory(tmp_path, "run", "A")
        for number in (-2, -1, 0):
            memory.save("rounding", number, {"x": torch.tensor([number])}, {})
        assert memory.load("rounding", before=1).round == 0
        assert memory.load("rounding", before=0).round == -1

    def test_is_nobody_elses_business(self, tmp_path):
        memory = SiteMemory(tmp_path, "run", "A")
        memory.save("home", 1, {"x": torch.zeros(1)}, {})
        assert memory.folder.stat().st_mode & 0o077 == 0
        assert SiteMemory(tmp_path, "run", "B").load("home", before=9) is None

    def test_names_from_elsewhere_are_no_paths(self, tmp_path):
        memory = SiteMemory(tmp_path / "in", "../../out", "../..")
        memory.save("home", 1, {"x": torch.zeros(1)}, {})
        assert [path.name for path in tmp_path.iterdir()] == ["in"]

    def test_a_damaged_record_is_passed_over(self, tmp_path):
        memory = SiteMemory(tmp_path, "run", "A")
        memory.save("home", 1, {"x": torch.zeros(1)}, {})
        memory.save("home", 2, {"x": torch.zeros(1)}, {})
        newest = max(memory.folder.glob("home-*"))
        newest.write_bytes(newest.read_bytes()[:20])
        with pytest.warns(UserWarning, match="damaged"):
            assert memory.load("home", before=9).round == 1

    def test_what_an_older_version_wrote_in_one_file_is_remembered(self, tmp_path):
        memory = SiteMemory(tmp_path, "run", "A")
        memory.folder.mkdir()
        old = save({"x": torch.ones(2)}, metadata={"facts": '{"n": 3}'})
        (memory.folder / f"home-{2**20 + 3}.safetensors").write_bytes(old)
        found = memory.load("home", before=4)
        assert (found.round, found.tensors["x"].tolist(), found.facts) == (3, [1, 1], {"n": 3})
        memory.save("home", 4, {"x": torch.zeros(1)}, {})
        memory.save("home", 5, {"x": torch.zeros(1)}, {})
        assert memory.load("home", before=4) is None


OPTIONS = {"model": "mlp:8", "lr": 0.1, "batch_size": 8}


class TestInASitesFolder:
    """Where a node is one of a deployment, the target's run lies in the site's folder."""

    @pytest.fixture
    def home(self, tmp_path, monkeypatch):
        monkeypatch.setenv("FEDBRIDGE_SITE", str(tmp_path / "T"))
        (tmp_path / "T").mkdir()
        return tmp_path / "T"

    @pytest.mark.parametrize("method", ["auto", "fedavg"])
    def test_it_is_a_whole_run_with_model_card_and_page(self, method, tmp_path, home):
        task = blobs()
        strategy, _ = run_over_pretended_flower(task, method, 2, tmp_path, **OPTIONS)
        local = fb.run(task, method, 2, workers=1, **OPTIONS)
        run = read_run(home / "run")
        assert same_model(load_model(home / "run").model, local.model)
        told = [(line["round"], line["accuracy"]) for line in run.history]
        assert told == [(line["round"], line["accuracy"]) for line in local.history]
        assert run.summary["accuracy"] == strategy.result.summary["accuracy"]
        assert "n_sources" not in run.summary
        card = (home / "run" / "model-card.md").read_text()
        assert "A model for the site target" in card
        assert (home / "run" / "report.html").read_text().startswith("<!doctype html>")
        assert (home / "run" / "test.safetensors").exists()
        RunFolder(home / "run").verify()
        files = [*(home / "run").iterdir()]
        assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
        assert (home / "run").stat().st_mode & 0o777 == 0o700

    def test_the_run_that_was_last_at_work_is_the_one_to_use(self, tmp_path, home):
        for seed in (0, 1, 0):
            run_over_pretended_flower(blobs(), "fedavg", 1, tmp_path, seed=seed, **OPTIONS)
            assert RunFolder(home / "run").config()["seed"] == seed
        (aside,) = home.glob("run-*")
        assert RunFolder(aside).config()["seed"] == 1
        assert load_model(aside)

    def test_a_round_that_is_asked_for_again_stands_there_once(self, tmp_path, home):
        doing = worker(tmp_path, 0)
        doing.memory.home = home
        state = doing.federation.initial
        for number in (1, 2, 3, 2):
            doing.keep(number, state, doing.evaluate(number, state))
        assert [line["round"] for line in RunFolder(home / "run").history()] == [1, 2]


class TestAtTheTarget:
    def test_its_model_is_kept_where_it_is(self, tmp_path):
        task = blobs()
        options = {"model": "mlp:8", "lr": 0.1, "batch_size": 8}
        strategy, _ = run_over_pretended_flower(task, "auto", 2, tmp_path, **options)
        (folder,) = (tmp_path / "target" / "model").iterdir()
        kept = load_model(folder).model
        assert same_model(kept, fb.run(task, "auto", 2, workers=1, **options).model)
        assert not same_model(kept, strategy.result.model), "the coordinator has another one"

    def test_a_round_that_is_asked_for_again_gets_the_same_answer(self, tmp_path):
        led = worker(tmp_path, 0, method="auto").federation.initial

        def decide(number):
            moved = led.moved(torch.full_like(led.parameters, 0.1 * number))
            return worker(tmp_path, 0, method="auto").decide(number, news_of(moved))

        decide(1)
        for number in (2, 3):
            ours, theirs = decide(number), decide(number)
            assert ours.facts == theirs.facts
            assert ours.evaluation == theirs.evaluation
            mine, other = ours.state.tensors(), theirs.state.tensors()
            assert mine.keys() == other.keys()
            assert all(torch.equal(mine[name], other[name]) for name in mine)

    def test_a_target_that_lost_its_memory_decides_from_the_news_alone(self, tmp_path):
        doing = worker(tmp_path, 0, method="auto")
        decision = doing.decide(5, news_of(doing.federation.initial))
        assert sum(decision.facts["weights"].values()) == pytest.approx(1)
        assert doing.own_model(5) is not None

    def test_its_own_model_is_the_one_that_is_measured(self, tmp_path):
        doing = worker(tmp_path, 0, method="offset")
        decision = doing.decide(2, news_of(doing.federation.initial))
        assert torch.equal(doing.own_model(3).parameters, decision.state.parameters)
        assert doing.own_model(1) is None, "the decision came later"
        assert worker(tmp_path, 0).own_model(3) is None, "fedavg decides nothing"

    def test_its_model_is_for_its_owner_only(self, tmp_path):
        options = {"model": "mlp:8", "lr": 0.1, "batch_size": 8}
        run_over_pretended_flower(blobs(), "auto", 1, tmp_path, **options)
        kept = [tmp_path / "target" / "model", *(tmp_path / "target" / "model").rglob("*")]
        assert {path.stat().st_mode & 0o777 for path in kept if path.is_dir()} == {0o700}
        assert {path.stat().st_mode & 0o777 for path in kept if path.is_file()} == {0o600}

    def test_every_run_has_a_model_of_its_own(self, tmp_path):
        def run_once(seed):
            return run_over_pretended_flower(blobs(), "fedavg", 1, tmp_path, seed=seed, **OPTIONS)[
                0
            ].result

        models = tmp_path / "target" / "model"
        first = run_once(0)
        (folder,) = models.iterdir()
        before = {file.name: file.read_bytes() for file in folder.iterdir()}
        run_once(1)
        assert len([*models.iterdir()]) == 2
        assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
        kept = load_model(folder).model.state_dict()
        assert all(torch.equal(kept[k], v) for k, v in first.model.state_dict().items())

    def test_only_a_better_model_takes_the_place_of_the_one_that_is_kept(self, tmp_path):
        """Better on the rows set aside; a round that comes again is held against those before."""
        initial = worker(tmp_path, 0).federation.initial

        def kept_after(number, loss):
            doing = worker(tmp_path, 0)
            state = initial.moved(torch.full_like(initial.parameters, float(loss)))
            doing.keep(number, state, Evaluation(None, loss))
            kept = parameter_vector(load_model(doing.memory.model()).model)
            return round(float((kept - initial.parameters).mean()), 3)

        assert kept_after(0, 1.0) == 1.0, "a warm-up round"
        assert kept_after(1, 5.0) == 5.0
        assert kept_after(2, 3.0) == 3.0
        assert kept_after(3, 4.0) == 3.0
        assert kept_after(4, 2.0) == 2.0
        assert kept_after(4, 2.5) == 2.5
        assert kept_after(5, float("nan")) == 2.5
        assert kept_after(1, 9.0) == 9.0, "a run that begins anew"

    def test_another_runs_model_is_not_written_over(self, tmp_path):
        mine = worker(tmp_path, which=0)
        state = mine.federation.initial
        mine.keep(1, state, mine.evaluate(1, state))
        before = (mine.memory.model() / "config.toml").read_bytes()
        other = worker(tmp_path, which=0, seed=1)
        with pytest.raises(fb.FedbridgeError, match="different one"):
            other.keep(1, state, mine.evaluate(1, state))
        assert (mine.memory.model() / "config.toml").read_bytes() == before

    @pytest.mark.parametrize("encoding", ["bfloat16", "int8"])
    @pytest.mark.parametrize("method", ["fedavg", "auto"])
    def test_rounded_updates_give_nearly_the_same_model(self, method, encoding, tmp_path):
        task, options = blobs(), {"model": "mlp:64", "lr": 0.1, "batch_size": 8}
        exact, _ = run_over_pretended_flower(task, method, 4, tmp_path / "a", **options)
        rounded, _ = run_over_pretended_flower(
            task, method, 4, tmp_path / "b", encoding=encoding, **options
        )
        if method == "auto":
            assert exact.result.history[-1]["choice"] == rounded.result.history[-1]["choice"]
        ours, theirs = (
            torch.cat([p.detach().reshape(-1) for p in found.result.model.parameters()])
            for found in (exact, rounded)
        )
        assert 0 < float((ours - theirs).norm() / ours.norm()) < 0.02
        sizes = [found.result.history[-1]["bytes_up"] for found in (exact, rounded)]
        assert sizes[1] < sizes[0]

    def test_what_rounding_lost_is_remembered_between_messages(self, tmp_path):
        task = blobs()
        grid = PretendGrid(nodes_of(task, tmp_path))
        run_over_pretended_flower(
            task, "fedavg", 2, tmp_path, grid, encoding="int8", model="linear", lr=0.1
        )
        assert [*(tmp_path / "site 0").rglob("rounding-*.safetensors")]


class TestSitePackage:
    @pytest.mark.parametrize("which", [0, 1])
    def test_a_sites_part_comes_back_as_it_was(self, which, tmp_path):
        task = fb.load_task("digits-noise", seed=1)
        site = sites_of(task)[which]
        save_site(tmp_path / "site", site)
        found = load_site(tmp_path / "site")
        assert (found.name, found.role, found.n_classes) == (site.name, site.role, 10)
        for ours, theirs in ((site.train, found.train), (site.test, found.test)):
            if ours is not None:
                assert torch.equal(ours.x, theirs.x)
                assert torch.equal(ours.y, theirs.y)
                assert ours.prepare == theirs.prepare

    def test_only_its_owner_reads_it(self, tmp_path):
        save_site(tmp_path / "site", sites_of(blobs())[0])
        assert (tmp_path / "site").stat().st_mode & 0o077 == 0

    @pytest.mark.parametrize("content", [b"", b"{}", b"\x80\x04K\x01.", b"\xff" * 100])
    def test_other_files_are_refused(self, content, tmp_path):
        (tmp_path / "site").write_bytes(content)
        with pytest.raises(fb.errors.DataError, match="one site's data"):
            load_site(tmp_path / "site")
