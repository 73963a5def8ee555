"""``fb.advise`` and ``fedbridge advise`` from end to end."""

import json
from dataclasses import asdict, replace

import pytest
import torch
from small import blobs, federation, line

import fedbridge as fb
from fedbridge.advice import batches, predict
from fedbridge.advice.advise import NoEvidenceError, error_bounds
from fedbridge.advice.measure import Measuring, MeasuringSide, batch_sketches, strata_of
from fedbridge.base.errors import DataError, OptionError, UnknownOptionError
from fedbridge.cli.main import main
from fedbridge.core.estimators import NoiseStream
from fedbridge.core.sketch import Sketch
from fedbridge.methods.auto import OTHER_NAMES

QUICK = {"after": 1, "workers": 1, "lr": 0.1, "batch_size": 8}


@pytest.fixture(autouse=True)
def _few_resamples(monkeypatch):
    monkeypatch.setattr(predict, "SIMULATED_RESAMPLES", 6)
    monkeypatch.setattr(batches, "RESAMPLES", 40)


def meaningless():
    """The sources' labels say nothing."""
    task = blobs(target_rows=60)
    chooser = torch.Generator().manual_seed(0)
    sources = tuple(
        replace(site, y=site.y[torch.randperm(len(site.y), generator=chooser)])
        for site in task.sources
    )
    return replace(task, sources=sources)


class TestMeasuring:
    def test_batches_come_back_from_what_a_stream_keeps(self):
        on = federation()
        sketch = Sketch(on.blocks, size=16)
        stream = NoiseStream(on.blocks, sketch=sketch)
        batches = torch.randn(5, on.blocks.total, dtype=torch.float64)
        for batch in batches:
            stream.add(batch)
        found = batch_sketches(sketch.press(stream.mean[None])[0], torch.stack(stream.sketches))
        torch.testing.assert_close(found, sketch.press(batches))
        alone = batch_sketches(sketch.press(batches[:1])[0], None)
        torch.testing.assert_close(alone, sketch.press(batches[:1]))

    def test_gradients_are_those_of_the_loss(self):
        on = federation(blobs(target_rows=9), sketch_size=64)
        news = []

        class Watching(MeasuringSide):
            def compare(self, told):
                news.append(super().compare(told))
                return news[-1]

        method = Measuring(on, {"after": 0})
        on.host(lambda: Watching(on, {}))
        method.measure_at_once()
        ((measured, conditions),) = news
        model = torch.nn.Linear(2, 3)
        weight, bias = on.initial.parameters[:6].view(3, 2), on.initial.parameters[6:]
        with torch.no_grad():
            model.weight.copy_(weight)
            model.bias.copy_(bias)
        site = on.task.target
        torch.nn.functional.cross_entropy(model(site.x), site.y).backward()
        gradient = torch.cat((model.weight.grad.flatten(), model.bias.grad)).double()
        sample = measured.as_seen()
        seen = sample.means[0] @ measured.gram.sum(0) @ sample.means[0]
        assert float(seen) == pytest.approx(float(gradient.square().sum()), rel=1e-4)
        assert conditions.samples == (9, 40, 40, 40)
        assert measured.fixed == ("median", "trimmed-mean")

    def test_strata_are_classes_and_single_rows_go_together(self):
        on = federation(blobs(target_rows=9))
        assert [len(rows) for rows in strata_of(on)] == [3, 3, 3]
        few = federation(blobs(target_rows=4))
        assert sorted(len(rows) for rows in strata_of(few)) == [2, 2]
        lonely = federation(blobs(target_rows=3))
        assert [len(rows) for rows in strata_of(lonely)] == [3]
        assert [len(rows) for rows in strata_of(federation(line()))] == [10]


class TestAdvise:
    def test_near_sources_help(self):
        advice = fb.advise("digits-none", workers=1)
        assert advice.decision == "join"
        assert {partner.role for partner in advice.partners} == {"helps"}
        assert [partner.name for partner in advice.partners] == [f"source {k}" for k in range(1, 5)]
        assert str(advice) == advice.verdict
        assert advice.verdict.startswith("Join: ")

    def test_sources_that_say_nothing_are_not_needed(self):
        advice = fb.advise(meaningless(), **{**QUICK, "after": 4})
        assert (advice.decision, advice.recommended) == ("alone", "alone-auto")
        assert advice.worth.rows == 60

    def test_it_is_what_auto_says_in_its_last_choice(self):
        task, options = blobs(target_rows=12), {"workers": 1, "lr": 0.1, "batch_size": 8}
        advice = fb.advise(task, after=4, **options)
        told = fb.run(task, "auto", rounds=4, **options).history[-1]
        assert asdict(advice.worth) == told["worth"]
        assert [partner.share for partner in advice.partners] == told["beta"]

    def test_without_a_round_nothing_is_tried(self):
        advice = fb.advise(blobs(), **{**QUICK, "after": 0})
        assert advice.worth is None
        assert advice.decision == "unclear"

    def test_every_rule_is_predicted_and_ranked(self):
        advice = fb.advise(blobs(), **QUICK)
        assert sorted(rule.rule for rule in advice.rules) == sorted(fb.rules.names())
        errors = [rule.error.value for rule in advice.rules]
        assert errors == sorted(errors)
        alone = next(rule for rule in advice.rules if rule.rule == "target-only")
        assert alone.error.value == pytest.approx(advice.sigma2.value)
        assert alone.relative.value == 1.0

    def test_the_same_seed_gives_the_same_advice(self):
        assert fb.advise(blobs(), **QUICK) == fb.advise(blobs(), **QUICK)

    def test_one_source(self):
        advice = fb.advise(blobs(sources=1, target_rows=30), **QUICK)
        assert len(advice.partners) == 1

    def test_identical_sites(self):
        task = blobs(target_rows=30)
        same = tuple(replace(site, x=task.target.x, y=task.target.y) for site in task.sources)
        advice = fb.advise(replace(task, sources=same), **QUICK)
        assert all(partner.d2.value <= 0 for partner in advice.partners)

    def test_a_single_row_is_thinner_still(self):
        task = line()
        one = replace(task.target, x=task.target.x[:1], y=task.target.y[:1])
        advice = fb.advise(replace(task, target=one), **QUICK)
        assert advice.sigma2 is None
        assert advice.worth is None
        assert advice.recommended == "auto"

    def test_regression(self):
        advice = fb.advise(line(), **QUICK)
        assert (advice.worth.rows, advice.worth.of_classes) == (10, False)
        assert advice.sigma2.value > 0

    def test_class_weights_and_whole_model(self):
        advice = fb.advise(blobs(), **QUICK, class_weights="balanced", blocks="model")
        assert advice.sigma2.value > 0

    def test_samples_are_those_asked_for(self):
        advice = fb.advise(blobs(), samples=[24, 12], **QUICK)
        assert [point.samples for point in advice.curve] == [12, 24]

    def test_it_tells_how_far_it_is(self):
        told = []
        fb.advise(blobs(), progress=lambda share, text: told.append((share, text)), **QUICK)
        shares = [share for share, _ in told]
        assert shares == sorted(shares)
        assert shares[-1] == pytest.approx(1.0)
        assert told[0][1] == "round 1 of 1"

    def test_other_names_of_the_classes_are_told(self):
        task = fb.load_task("digits-none", n_target=30)
        target = replace(task.target, y=(task.target.y + 1) % 10)
        notes = fb.advise(replace(task, target=target)).notes
        assert any(note.startswith(OTHER_NAMES) and "1 is 0 there" in note for note in notes)
        assert not any(note.startswith(OTHER_NAMES) for note in fb.advise(task).notes)

    def test_a_source_that_fails_is_named(self):
        task = blobs()
        broken = replace(task.sources[1], x=torch.full_like(task.sources[1].x, 3e38))
        advice = fb.advise(
            replace(task, sources=(task.sources[0], broken)), **{**QUICK, "after": 0}
        )
        assert [partner.name for partner in advice.partners] == ["site 0"]
        assert advice.notes[0].startswith("site 1 could not be measured: ")

    def test_no_source_that_works(self):
        task = blobs(sources=1)
        broken = replace(task.sources[0], x=torch.full_like(task.sources[0].x, 3e38))
        with pytest.raises(DataError, match="at least one source whose gradient can be measured"):
            fb.advise(replace(task, sources=(broken,)), **{**QUICK, "after": 0})

    def test_bad_input_is_refused(self):
        task = blobs()
        with pytest.raises(OptionError, match="`after`"):
            fb.advise(task, after=-1)
        with pytest.raises(OptionError, match="at least one number of `samples`"):
            fb.advise(task, samples=[])
        with pytest.raises(OptionError, match="`samples`"):
            fb.advise(task, samples=[0])
        with pytest.raises(OptionError, match="Expected a task, or what load_task takes"):
            fb.advise(5)
        with pytest.raises(UnknownOptionError, match="learning"):
            fb.advise(task, learning=1)
        with pytest.raises(OptionError, match="a task of the target 'x'"):
            fb.advise(task, target="x")


@pytest.fixture
def run_folder(tmp_path):
    fb.run(blobs(), "fedda-joint", rounds=10, out=tmp_path / "run", workers=1, lr=0.1, batch_size=4)
    return tmp_path / "run"


class TestFromARun:
    def test_the_last_rounds_speak(self, run_folder):
        advice = fb.advise(run_folder, samples=[12, 100])
        history = [
            json.loads(text) for text in (run_folder / "history.jsonl").read_text().splitlines()
        ]
        mean = sum(ln["sigma2"] for ln in history) / 10
        assert advice.sigma2.value == pytest.approx(mean)
        assert advice.sigma2.low < mean < advice.sigma2.high
        assert advice.evidence == "the last 10 rounds of a run of fedda-joint"
        assert advice.partners[0].d2.value == pytest.approx(sum(ln["d2"][0] for ln in history) / 10)
        assert {rule.rule for rule in advice.rules if rule.bound} == {
            "source-only",
            "fedavg",
            "fedda",
            "fedda-auto",
            "fedda-joint",
        }
        assert [point.samples for point in advice.curve] == [12, 100]
        assert any("may look smaller" in note for note in advice.notes)

    def test_few_rounds_are_thin_evidence(self, tmp_path):
        fb.run(blobs(), "fedda", rounds=2, out=tmp_path / "run", workers=1, batch_size=4)
        assert fb.advise(tmp_path / "run").recommended == "auto"

    def test_a_run_that_measured_nothing_is_refused(self, tmp_path):
        fb.run(blobs(), "target-only", rounds=1, out=tmp_path / "run", workers=1)
        with pytest.raises(NoEvidenceError, match="'target-only'"):
            fb.advise(tmp_path / "run")

    def test_one_batch_a_round_shows_no_noise(self, tmp_path):
        fb.run(blobs(), "fedda", rounds=1, out=tmp_path / "run", workers=1, batch_size_target=50)
        with pytest.raises(NoEvidenceError, match="run `auto`"):
            fb.advise(tmp_path / "run")

    @pytest.mark.parametrize("sources", [1, 3])
    def test_a_run_of_auto_says_what_joining_was_worth(self, tmp_path, sources):
        out = tmp_path / "run"
        told = fb.run(blobs(sources=sources), "auto", rounds=2, out=out, workers=1).history
        advice = fb.advise(out)
        assert asdict(advice.worth) == told[-1]["worth"]
        assert len(advice.partners) == (3 if sources == 3 else 0)  # one source is not measured
        assert "a run of auto" in advice.evidence

    def test_other_runs_have_not_tried(self, run_folder):
        advice = fb.advise(run_folder)
        assert advice.decision == "unclear"
        assert "name the task instead" in advice.notes[0]

    def test_a_run_has_decided_all_options(self, run_folder):
        with pytest.raises(OptionError, match="but got target, lr"):
            fb.advise(run_folder, "target", lr=0.1)

    def test_bounds_are_those_of_one_source(self):
        sigma2, d2 = torch.tensor([2.0]).double(), torch.tensor([[6.0]]).double()
        found = {name: float(error) for name, error in error_bounds(sigma2, d2, (10, 30)).items()}
        assert found == pytest.approx(
            {
                "target-only": 2.0,
                "source-only": 6.0,
                "fedda": 2.0,
                "fedda-auto": 1.5,
                "fedda-joint": 1.5,
                "fedavg": 2 / 16 + 6 * 9 / 16,
            }
        )


class TestCommand:
    WORDS = ("advise", "digits-noise", "--n-target", "20", "--after", "1", "--workers", "1")

    def test_it_says_it_in_words_tables_and_bars(self, capsys, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        assert main([*self.WORDS, "--samples", "20,40"]) == 0
        shown = capsys.readouterr().out
        for expected in ("Recommended: `", "source 4", "fedda-joint", "20 to 40 labelled samples"):
            assert expected in shown
        assert list(tmp_path.iterdir()) == []

    def test_json_has_everything_and_may_be_kept(self, capsys, tmp_path):
        out = tmp_path / "advice.json"
        assert main([*self.WORDS, "--json", "--out", str(out)]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told == json.loads(out.read_text())
        assert told["samples"] == 20
        assert told["target"] == "target"
        assert {
            "sigma2",
            "partners",
            "rules",
            "worth",
            "decision",
            "recommended",
            "thin",
            "curve",
            "enough",
            "verdict",
            "evidence",
            "notes",
        } <= set(told)
        assert {"name", "d2", "cosine", "ratio", "weight", "role"} <= set(told["partners"][0])

    def test_a_run_folder_is_recognised(self, capsys, run_folder):
        assert main(["advise", str(run_folder), "--json"]) == 0
        assert "the last 10 rounds" in json.loads(capsys.readouterr().out)["evidence"]

    @pytest.mark.parametrize(
        ("words", "told"),
        [
            (("advise", "digits-nois"), "digits-noise"),
            (("advise", "digits-noise", "--samples", "x"), "--samples"),
            (("advise", "digits-noise", "--learning", "1"), "learning"),
            (("advise", "digits-noise", "--after", "-1"), "--after"),
        ],
    )
    def test_a_wrong_word_is_one_line(self, capsys, words, told):
        assert main(words) == 2
        shown = capsys.readouterr()
        assert shown.out == ""
        assert shown.err.count("\n") == 1
        assert told in shown.err
