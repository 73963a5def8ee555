"""The epsilon that a site is told, against Opacus' own accountants fed with what really happened.

The looks are counted where the rows are touched, not where they are planned.
"""

from collections import Counter, defaultdict

import pytest
from flower.test_private_site import QUICK, worker
from opacus.accountants import PRVAccountant, RDPAccountant
from pretend import PretendGrid, nodes_of, run_over_pretended_flower
from small import blobs

from fedbridge.advice import batches, predict
from fedbridge.advice.advise import SKETCH_SIZE
from fedbridge.advice.measure import ADVICE
from fedbridge.flower.privacy import PrivacyBudget, PrivacySpentError
from fedbridge.flower.site import SPENDING
from fedbridge.training.job import Job, LocalPlan
from fedbridge.training.trainer import Workbench

DELTA, ERROR = 1e-5, 0.1


@pytest.fixture
def touched(monkeypatch):
    """(rate, noise) of every gradient that was taken of rows, by the name of their site."""
    counts = defaultdict(Counter)
    own = Workbench._private_gradient

    def counted(bench, job, step, chance):
        site, rows = bench.sites[job.client], bench.samples(job)
        rate = min(1.0, job.plan.batch_size / rows)
        counts[site.name][rate, job.privacy.noise] += 1
        return own(bench, job, step, chance)

    monkeypatch.setattr(Workbench, "_private_gradient", counted)
    return counts


def by_opacus(looks, kind=RDPAccountant, **options):
    accountant = kind()
    accountant.history = [(noise, rate, count) for (rate, noise), count in looks.items()]
    return accountant.get_epsilon(DELTA, **options)


def agrees(told, looks):
    """The same as Opacus' Renyi accountant, and a bound of what its tighter one finds."""
    assert by_opacus(looks, PRVAccountant, eps_error=ERROR) - ERROR < told
    assert told == pytest.approx(by_opacus(looks), rel=0.05)


def ask(folder, round, *kinds, **plan):
    """One message to a process of its own, as every message of a deployment is."""
    one = worker(folder)
    shared = LocalPlan(noise="size", **plan)
    jobs = [Job(1, shared, seed, kind) for seed, kind in enumerate(kinds or ("train",))]
    return one.train(round, jobs, [one.federation.initial]).epsilon


def test_steps_and_batches_that_change_and_probes_are_all_counted(touched, tmp_path):
    """Two runs, which ask for other work; the second asks for probes and more jobs as well."""
    small = {"batch_size": 4}
    told = [ask(tmp_path, 1, **small), ask(tmp_path, 1, "train", "probe", batch_size=8, steps=2)]
    assert len(touched["site 0"]) == 2
    assert told[0] < told[1]
    agrees(told[1], touched["site 0"])


def test_a_message_that_was_broken_off_and_is_asked_for_again_counts_twice(
    touched, tmp_path, monkeypatch
):
    whole, broken = Workbench._private_gradient, []

    def breaks(bench, job, step, chance):
        done = whole(bench, job, step, chance)
        if step == 2 and not broken:
            broken.append(step)
            raise KeyboardInterrupt
        return done

    monkeypatch.setattr(Workbench, "_private_gradient", breaks)
    with pytest.raises(KeyboardInterrupt):
        ask(tmp_path, 1, batch_size=8)
    told = ask(tmp_path, 1, batch_size=8)
    (look, count), *others = touched["site 0"].items()
    assert (count, others) == (3 + 5, []), "three steps of five, then all"
    agrees(told, {look: 2 * 5})
    assert told > by_opacus(touched["site 0"])
    with pytest.raises(PrivacySpentError):
        ask(tmp_path, 1, batch_size=8)


@pytest.mark.parametrize("method", ["fedavg", "auto", ADVICE])
def test_what_a_run_and_advice_have_asked_for_is_what_the_history_tells(
    method, touched, tmp_path, monkeypatch
):
    monkeypatch.setattr(predict, "SIMULATED_RESAMPLES", 6)
    monkeypatch.setattr(batches, "RESAMPLES", 40)
    task = blobs(target_rows=24)
    nodes = nodes_of(task, tmp_path, advice=True)
    for node in nodes[1:]:
        node.config |= {"record-epsilon": 8.0, "record-rounds": 5}
    options = {"sketch_size": SKETCH_SIZE, "after": 2} if method == ADVICE else {}
    options |= {**QUICK, "warmup": 1}
    strategy, _ = run_over_pretended_flower(
        task, method, 2, tmp_path, PretendGrid(nodes), **options
    )
    last = strategy.result.history[-1]
    assert not last["failures"]
    assert set(last["epsilon"]) == {*task.source_names} == set(touched)
    agrees(last["epsilon"]["site 0"], touched["site 0"])
    for name in task.source_names:
        assert touched[name] == touched["site 0"], "as many rows, and asked for the same"
        assert PrivacyBudget(tmp_path / name / SPENDING).epsilon(DELTA) == last["epsilon"][name]
