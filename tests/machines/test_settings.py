"""Methods and settings: words for methods, their machines, and errors that name the parameter and its owner."""

import jax.numpy as jnp
import optax
import pytest

from thalweg.kernels import Gaussian, Matern32
from thalweg.machines import (
    CDSG,
    DSG,
    UDSG,
    Auto,
    Capped,
    Checked,
    LogisticLoss,
    New,
    Points,
    Settings,
    SquaredLoss,
    Uniform,
    ValidatedStep,
)


def test_a_word_names_a_method():
    found = {word: type(Settings(loss=SquaredLoss(), method=word).method) for word in ("auto", "dsg", "udsg", "cdsg")}
    assert found == {"auto": Auto, "dsg": DSG, "udsg": UDSG, "cdsg": CDSG}
    own = UDSG(periods=(3, 2))
    assert Settings(loss=SquaredLoss(), method=own).method is own
    assert [kind().updates_blocks for kind in (Auto, DSG)] == [True, False]
    assert not Auto(features="quasi").updates_blocks


def test_each_method_has_its_rule_and_its_step():
    points = Points(Gaussian(1.0), 4)
    machines = [method.machine(points, LogisticLoss(), 7) for method in (Auto(), DSG(), UDSG(periods=(2, 3)), CDSG())]
    assert [machine.rule for machine in machines] == [Capped(7), New(), Uniform(2, 3), Checked(10.0)]
    assert isinstance(machines[0].step, ValidatedStep)
    # Steps begin with 1/2 where they are preconditioned, else with 1/L.
    plain = DSG(precondition=False).machine(points, LogisticLoss(), 7)
    assert [float(machine.step.size(jnp.array(0))) for machine in (machines[1], plain)] == [0.5, 4.0]
    assert [machine.precondition for machine in (machines[0], machines[1], plain)] == [True, True, False]
    own = DSG(step=optax.constant_schedule(0.3)).machine(points, LogisticLoss(), 7)
    assert float(own.step.size(jnp.array(5))) == pytest.approx(0.3)
    assert float(Auto(step=0.2).machine(points, LogisticLoss(), 7).step.size(jnp.array(5))) == 0.2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DSG(features="rff"), "features of DSG must be one of 'landmarks', 'random', .*, found 'rff'"),
        (lambda: Auto(batch_size=0), "batch_size of Auto must be a whole number of at least 1, found 0"),
        (lambda: Auto(batch_size=2.5), "batch_size of Auto must be a whole number of at least 1, found 2.5"),
        (lambda: DSG(step="a"), "step must be a number, a schedule .*, found 'a'"),
        (lambda: DSG(step=0), "step must be a finite number above 0, found 0"),
        (lambda: DSG(step=optax.adam(0.1)), "step of DSG must be a number or a schedule count -> size"),
        (lambda: CDSG(precondition="yes"), "precondition of CDSG must be True or False, found 'yes'"),
        (lambda: DSG(keep_frequencies="x"), "keep_frequencies of DSG must be True or False, found 'x'"),
        (lambda: UDSG(periods=3), r"periods of UDSG must be a pair \(G, U\) of whole numbers, found 3"),
        (lambda: UDSG(periods=(0, 1)), "new of Uniform must be a whole number of at least 1, found 0"),
        (lambda: CDSG(stretch=0.5), "stretch of Checked must be a number of at least 1, found 0.5"),
        (lambda: Auto(tol=-1), "tol of Auto must be a finite number of at least 0, found -1"),
        (lambda: DSG(early_stopping="yes"), "early_stopping of DSG must be True, False or 'auto', found 'yes'"),
        (lambda: DSG(early_stopping=3), "early_stopping of DSG must be True, False or 'auto', found 3"),
        (lambda: Auto(validation_fraction=1), "validation_fraction of Auto must be a finite number above 0 below 1"),
        (lambda: Settings(loss="squared"), r"loss must be a Loss such as SquaredLoss\(\), found 'squared'"),
        (lambda: Settings(loss=SquaredLoss(), kernel=int), "kernel must be one of 'rbf', .* found <class 'int'>"),
        (lambda: Settings(loss=SquaredLoss(), alpha=0), "alpha must be a finite number above 0, found 0"),
        (lambda: Settings(loss=SquaredLoss(), bandwidth="x"), "bandwidth must be a finite number above 0, found 'x'"),
        (lambda: Settings(loss=SquaredLoss(), method="sgd"), "method must be one of 'auto', 'dsg', .*, found 'sgd'"),
        (lambda: Settings(loss=SquaredLoss(), passes=0), "passes must be a whole number of at least 1, found 0"),
    ],
)
def test_errors_name_the_wrong_setting(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()


def test_a_class_of_kernels_is_accepted():
    assert Settings(loss=SquaredLoss(), kernel=Matern32).kernel is Matern32
