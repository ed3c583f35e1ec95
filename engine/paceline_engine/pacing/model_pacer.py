"""The pacer that keeps a step within its target by a model fitted from its own steps."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from paceline_engine.pacing.fit import Fit, SampleStore, fit, scale_of
from paceline_engine.pacing.knee import KneeWatch, best_knee, with_knee
from paceline_engine.pacing.lane_pace import step_allowance_ms
from paceline_engine.pacing.pacer import StepShape
from paceline_engine.pacing.prior import Prior, seeded, unbounded
from paceline_engine.pacing.residuals import Residuals
from paceline_engine.pacing.totals import Totals
from paceline_wire import Coefficients, MeasuredStep, Origin, StepFeatures, StepModelInfo
from paceline_wire.limits import Capacity, Limits
from paceline_wire.step_cost import StepModel, step_model

_FIRST_FIT_STEPS = 20
_FIRST_SCALE_STEPS = 3
_LATEST = 60
_LEARNING_STEPS = 200
_REFIT_STEPS = 200
_REFIT_S = 5.0  # where steps are slow, 200 of them are minutes
_OUTLIER = 2.0  # measured / predicted of a step that teaches nothing, once warm
_RECENT = 600
_MAX_MS = 1e7
_SEED_RANGE = 1.5  # a seed that is off by more than this factor contributes its shape only
_REPEATS = 10  # weight of each profiled time, in steps, so that it outvotes the prior
_STARTED = {"profile": "profiled at start", "seed": "seeded"}
_LEAST_PROFILE = 8  # sizes: of fewer the prompts are so short that long ones are guessed from noise


class ModelPacer:
    """L0 and L1: the largest step predicted to keep its target. One thread, the engine's own."""

    def __init__(self, prior: Prior, capacity: Capacity) -> None:
        """Start from the prior, untrusted until the first fit."""
        self._assumed = prior
        self._prior = prior
        """What a fit is pulled to: `assumed`, or a seed while fits with it are accepted."""
        self._capacity = capacity
        self._model = prior.model
        self._anchor = prior.model
        self._residuals = Residuals(capacity.max_token_budget, prior.bin_tokens)
        self._store = SampleStore()
        self._profile: list[MeasuredStep] = []
        """Steps measured before any request."""
        self._recent: deque[MeasuredStep] = deque(maxlen=_RECENT)
        self._origin: Origin = "prior"
        self._samples = 0
        self._steps = 0
        """All steps, unclean ones too: their number seeds the dither."""
        self._since_fit = 0
        self._fitted_at = -math.inf
        self._knee_watch = KneeWatch()
        self._reason = "learning: no fit yet"

    def token_total(self, shape: StepShape, limits: Limits) -> int:
        """Tokens this step may hold: within [decode, limits.token_budget]."""
        budget = max(limits.token_budget, shape.decode)
        target_ms = self._step_target_ms(shape, limits)
        if shape.decode == 0 or target_ms is None:
            return budget
        least = min(shape.decode + self._prior.min_prefill, budget)
        totals = Totals(
            self._model,
            self._residuals,
            shape,
            target_ms / self._residuals.q_r,
            has_tiles=self._prior.has_tiles,
        )
        most = totals.most(budget)
        # What finishes every prompt that waits is the best step there is.
        if most <= least or shape.decode + shape.prefill_wanted <= most:
            return max(least, most)
        if not self._doubt():
            looked = totals.dithered(most, least, self._steps)
            if looked != most:
                return looked
        return totals.better(most, least)

    def allowed_ms(self, shape: StepShape, limits: Limits) -> float:
        """Predicted time that this step may take to keep its target; infinite without one."""
        target_ms = self._step_target_ms(shape, limits)
        return math.inf if target_ms is None else target_ms / self._residuals.q_r

    def predict_ms(self, step: StepFeatures) -> float:
        """Predicted step time in milliseconds, without the safety factor q_r."""
        return self._model.ms(step) * self._residuals.factor(step.tokens)

    def observe(self, step: MeasuredStep, *, at: float, clean: bool = True) -> None:
        """Learn from a step that ended `at` (seconds); one that is not clean only counts."""
        self._steps += 1
        if not clean or not self._is_plausible(step):
            return
        ratio = self._residuals.learn(step.tokens, step.wall_ms, self._model.ms(step))
        self._samples += 1
        self._since_fit += 1
        self._recent.append(step)
        if self._residuals.is_lost:
            self._store.clear()
            self._residuals.forget()
            self._recent.clear()
            self._reason = "learning anew: steps take far more or less time than before"
        if self._reason or ratio <= _OUTLIER:
            self._store.add(step)
        if self._is_fit_due(at):
            self._refit(at)
        elif self._origin != "fit":
            self._scale()

    def seed(self, coefficients: Coefficients) -> bool:
        """Start from a model fitted elsewhere; False where it is not used.

        A fit of this engine's own steps goes before it, and so does a profile that contradicts it.
        """
        model = step_model(coefficients.theta, coefficients.knee)
        if self._origin == "fit" or not self._agrees_with_profile(model):
            return False
        self._start_from(model, "seed")
        if coefficients.bin_tokens == self._residuals.bin_tokens:
            self._residuals.seed(coefficients.correction)
        self._judge_anew()
        return True

    def learn_profile(self, steps: Sequence[MeasuredStep]) -> bool:
        """Start from steps that were measured before any request; False where they are too few.

        They replace the prior: fits are pulled to them, and outvote them as they would the prior.
        """
        if self._origin != "prior" or len(steps) < _LEAST_PROFILE:
            return False
        self._profile = list(steps)
        found = fit(self._profile * _REPEATS, self._profile, unbounded(self._assumed))
        self._start_from(found.model, "profile")
        return True

    def info(self) -> StepModelInfo:
        """The fitted model, as telemetry reports it."""
        reason = self._doubt()
        return StepModelInfo(
            theta=list(self._model.theta),
            prior=list(self._anchor.theta),
            knee=self._model.knee,
            correction=list(self._residuals.correction),
            bin_tokens=self._residuals.bin_tokens,
            fast=self._residuals.fast,
            q_r=self._residuals.q_r,
            samples=self._samples,
            mape=self._residuals.mape,
            valid=not reason,
            reason=reason,
            origin=self._origin,
        )

    def _agrees_with_profile(self, model: StepModel) -> bool:
        """Whether the model's scale is near the profile's; True where no profile was made."""
        if not self._profile:
            return True
        return 1 / _SEED_RANGE < scale_of(self._profile, model) < _SEED_RANGE

    def _start_from(self, model: StepModel, origin: Origin) -> None:
        """Predict by `model`, and pull fits to it, until there is one of this engine's steps."""
        self._model = model
        self._prior = seeded(self._assumed, model)
        self._anchor = self._prior.model
        self._origin = origin
        self._reason = f"learning: {_STARTED[origin]}, no fit yet"

    def _step_target_ms(self, shape: StepShape, limits: Limits) -> float | None:
        """tau, what this step may take; None where nothing paces it."""
        pace_ms, target_ms = limits.pace_tpot_ms, limits.step_target_ms
        if pace_ms is None or (shape.slack_ms is None and target_ms is not None):
            return target_ms
        return step_allowance_ms(shape.slack_ms, pace_ms)

    def _doubt(self) -> str:
        """Why the model is not trusted; empty where it is."""
        if self._reason or self._residuals.q_r <= self._prior.max_q_r:
            return self._reason
        return f"q_r {self._residuals.q_r:.2f} is above {self._prior.max_q_r:.2f}"

    def _scale(self) -> None:
        """Before the first fit, scale a guessed line to the steps seen so far."""
        # Where a step takes seconds, twenty of them are too long to wait for.
        if len(self._recent) < _FIRST_SCALE_STEPS:
            return
        scale = scale_of(self._recent, self._prior.model)
        if self._origin != "prior" and not 1 / _SEED_RANGE < scale < _SEED_RANGE:
            self._prior = replace(self._prior, is_guess=True)
        if self._prior.is_guess:
            self._model = self._prior.model.scaled(scale)

    def _is_plausible(self, step: MeasuredStep) -> bool:
        capacity = self._capacity
        return (
            math.isfinite(step.wall_ms)
            and 0.0 < step.wall_ms < _MAX_MS
            and step.decode >= 0
            and step.prefill >= 0
            and 0 < step.tokens <= capacity.max_token_budget
            and 0 <= step.context <= capacity.max_batch_size * capacity.max_model_len
            and 0 <= step.attention <= step.tokens * capacity.max_model_len
        )

    def _is_fit_due(self, at: float) -> bool:
        if self._since_fit < _FIRST_FIT_STEPS:
            return False
        is_young = self._samples < _LEARNING_STEPS or self._reason != ""
        # `at` of a broken record may be anything: a clock that went back makes a fit due too.
        return is_young or self._since_fit >= _REFIT_STEPS or abs(at - self._fitted_at) >= _REFIT_S

    def _refit(self, at: float) -> None:
        self._since_fit = 0
        self._fitted_at = at if math.isfinite(at) else 0.0
        training, holdout = self._store.split()
        if len(training) < _FIRST_FIT_STEPS // 2:
            return
        if self._origin == "fit" and self._knee_watch.is_due(self._samples, at):
            self._turn(best_knee(training, holdout, self._prior))
        result = self._fit(training, holdout, self._prior)
        if result.refusal and self._prior is not self._assumed:
            # A seed that does not fit this engine must not make every later fit be refused.
            result = self._fit(training, holdout, self._assumed)
            self._prior = self._prior if result.refusal else self._assumed
        self._reason = result.refusal
        if result.refusal:
            return
        self._origin = "fit"
        self._model = result.model
        self._anchor = result.prior
        self._judge_anew()

    def _turn(self, knee: int) -> None:
        """Pull fits to a line with another knee."""
        if knee == self._prior.model.knee:
            return
        is_assumed = self._prior is self._assumed
        self._assumed = with_knee(self._assumed, knee)
        self._prior = self._assumed if is_assumed else with_knee(self._prior, knee)
        # The corrections were learned against the line before.
        self._residuals.forget()

    def _fit(self, training: list[MeasuredStep], holdout: list[MeasuredStep], prior: Prior) -> Fit:
        """Fit all stored steps; where that is refused, only the newest."""
        result = fit(training, holdout, prior)
        latest = list(self._recent)[-_LATEST:]
        if result.refusal and len(latest) == _LATEST:
            # The store may hold two engines, the one before a change of pace and the one after.
            split = _LATEST * 9 // 10
            result = fit(latest[:split], latest[split:], prior)
        return result

    def _judge_anew(self) -> None:
        """Compare the recent steps with the present line."""
        self._residuals.restart(
            [(step.tokens, step.wall_ms, self._model.ms(step)) for step in self._recent]
        )
