"""Chooses meshes and schedules of the learner and the sampler of agents that answer prompts."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from . import planning
from .planning import PlannedSampler, StepPhases

if TYPE_CHECKING:
    from .. import partitioning
    from ..agents.programs.placement import Partition
    from ..agents.programs.planning import PlannedStep
    from ..environments import EnvironmentSpec
    from .experiment import Experiment

#: Schedules tried for a sampler, which has no gradients and no state of an optimizer to divide.
SCHEDULES = (
    "batch:data",
    "batch:data,zero3:data",
    "batch:data,megatron:model",
    "batch:data,megatron:model,zero3:data",
)
#: From this ratio of seconds on, half of the devices of one would be better off with the other.
_UNBALANCED = 2.0


@dataclasses.dataclass(frozen=True)
class Arrangement:
    """The devices that learn and that answer, and the seconds of a gradient step.

    Attributes:
      learner, sampler: the choices for either.
      joined: the sampler's plan, and the way of the parameters to it.
      apart: True if the sampler has devices of its own, and answers while the learner learns; else
        both take turns on the same ones.
      cache_bytes: keys and values on each device of the sampler.
    """

    learner: partitioning.PlanChoice
    sampler: partitioning.PlanChoice
    joined: PlannedSampler
    apart: bool
    cache_bytes: int

    @property
    def devices(self) -> int:
        """The number of all devices."""
        learner, sampler = self.learner.plan.mesh.size, self.sampler.plan.mesh.size
        return learner + sampler if self.apart else learner

    @property
    def phases(self) -> StepPhases:
        """Seconds by phase."""
        assert self.joined.phases is not None
        if self.apart:
            return self.joined.phases
        return dataclasses.replace(self.joined.phases, syncing=self.joined.shared.seconds)

    @property
    def seconds(self) -> float:
        """Seconds of a gradient step, answers included."""
        return self.phases.one_off if self.apart else self.phases.in_turn

    @property
    def rate(self) -> float:
        """Tokens of prompts and answers a second and device."""
        return self.phases.tokens / self.seconds / self.devices

    @property
    def memory_bytes(self) -> tuple[int, int]:
        """Peaks of a device as the learner learns, and as the sampler answers.

        On the same devices each holds the arguments of the other meanwhile.
        """
        learner, sampler = (
            choice.best.simulation.memory for choice in (self.learner, self.sampler)
        )
        if self.apart:
            return learner.peak, sampler.peak
        return learner.peak + sampler.arguments, sampler.peak + learner.arguments

    @property
    def fits(self) -> bool:
        """True if the memory of a device holds both."""
        return max(self.memory_bytes) <= self.learner.best.simulation.device.memory_bytes

    def __str__(self) -> str:
        from ..partitioning.explain import table
        from ..partitioning.simulator.simulate import amount

        rows = []
        for role, choice, seconds, peak in zip(
            ("learner", "sampler"),
            (self.learner, self.sampler),
            (self.phases.learning, self.phases.answering),
            self.memory_bytes,
            strict=True,
        ):
            of_sampler = role == "sampler"
            large = peak > choice.best.simulation.device.memory_bytes
            rows.append(
                {
                    "role": role,
                    "mesh": choice.best.mesh,
                    "schedule": choice.best.schedule,
                    "seconds": f"{seconds:.3g}",
                    "peak": amount(peak, "B", 1024) + " (too large)" * large,
                    "KV cache": amount(self.cache_bytes, "B", 1024) if of_sampler else "",
                }
            )
        learner, sampler = (one.plan.mesh.size for one in (self.learner, self.sampler))
        phases = self.phases
        head = (
            f"one step off: {learner} devices learn while {sampler} others answer"
            if self.apart
            else f"in step: {learner} devices answer and learn in turn"
        )
        return (
            f"{head}\n{table(rows, left=('role', 'mesh', 'schedule'))}\n"
            f"a gradient step on {phases.groups} groups, {phases.tokens:,} tokens of prompts and "
            f"answers of full length: {phases.answering:.3g} s answering, {phases.syncing:.3g} s "
            f"parameters on their way, {phases.learning:.3g} s learning; {self.seconds:.3g} s, "
            f"{self.rate:,.0f} tokens a second and device"
        )

    def to_json(self) -> dict[str, Any]:
        """The choices and the figures by name."""
        learner, sampler = self.memory_bytes
        return {
            "devices": self.devices,
            "apart": self.apart,
            "learner": self.learner.best.to_json(),
            "sampler": self.sampler.best.to_json(),
            "learner_memory_bytes": learner,
            "sampler_memory_bytes": sampler,
            "cache_bytes": self.cache_bytes,
            "fits": self.fits,
            "phases": dataclasses.asdict(self.phases),
            "seconds": self.seconds,
            "tokens_per_second_and_device": self.rate,
        }


class Arranging:
    """Chooses arrangements for an experiment; its step and its policy are traced once each."""

    def __init__(
        self,
        experiment: Experiment,
        spec: EnvironmentSpec,
        partition: Partition,
        memory: float | None = None,
    ):
        """Plans nothing yet.

        Args:
          experiment: without a partition, of an agent that answers prompts.
          spec: of one environment.
          partition: what every plan has besides its mesh and schedule.
          memory: the share of a device's memory within which plans fit; None: all of it.
        """
        self._experiment, self._spec, self._partition = experiment, spec, partition
        self._memory = 1.0 if memory is None else memory
        self._learners: dict[int, PlannedStep] = {}
        self._samplers: dict[int, PlannedStep] = {}

    def in_step(self, devices: int) -> Arrangement:
        """Chooses for so many devices that answer and learn in turn.

        Raises:
          ValueError: if there is no such device, or they cannot share either.
        """
        learner = self._learner(devices)
        cost = learner.best.simulation
        left = self._memory - cost.memory.arguments / cost.device.memory_bytes
        return self._arranged(learner, self._sampler(devices, left), apart=False)

    def one_off(self, devices: int, samplers: int | None = None) -> Arrangement:
        """Chooses for so many devices, of which some learn while the others answer.

        Args:
          devices: of both.
          samplers: those that answer; None: half, or a quarter or three where that is quicker.

        Raises:
          ValueError: as `in_step`, or if none would be left to one of them.
        """
        if samplers is not None:
            return self._apart(devices, samplers)
        best = self._apart(devices, devices // 2)
        learning, answering = best.phases.learning, best.phases.answering
        if max(learning, answering) > _UNBALANCED * min(learning, answering) and devices % 4 == 0:
            quarters = 3 if answering > learning else 1
            try:
                other = self._apart(devices, devices * quarters // 4)
            except ValueError:  # The batch, say, does not divide so.
                return best
            return min(best, other, key=lambda one: (not one.fits, one.seconds))
        return best

    def _apart(self, devices: int, samplers: int) -> Arrangement:
        if not 0 < samplers < devices:
            raise ValueError(
                f"of {devices} devices {samplers} cannot answer while others learn; give from 1 to "
                f"{devices - 1} of them, of at least 2 in all"
            )
        sampler = self._sampler(samplers, self._memory)
        return self._arranged(self._learner(devices - samplers), sampler, apart=True)

    def _learner(self, devices: int) -> partitioning.PlanChoice:
        from .. import partitioning

        if devices not in self._learners:
            self._learners[devices] = planning.unpartitioned(
                self._experiment, self._spec, devices, self._partition
            )
        return partitioning.choose(self._learners[devices].on, devices, self._memory, stages=False)

    def _sampler(self, devices: int, memory: float) -> partitioning.PlanChoice:
        from .. import partitioning

        if devices not in self._samplers:
            self._samplers[devices] = planning.unpartitioned_policy(
                self._experiment, self._spec, devices, self._partition
            )
        return partitioning.choose(self._samplers[devices].on, devices, memory, SCHEDULES, 0, False)

    def _arranged(
        self, learner: partitioning.PlanChoice, sampler: partitioning.PlanChoice, apart: bool
    ) -> Arrangement:
        device = self._partition.device or learner.best.simulation.device
        joined = planning.join(self._experiment, self._spec, learner.plan, sampler.plan, device)
        return Arrangement(learner, sampler, joined, apart, cache_bytes(sampler.plan, self._spec))


def cache_bytes(policy: partitioning.Plan, spec: EnvironmentSpec) -> int:
    """Bytes of the keys and values that each device holds while answers are drawn.

    Args:
      policy: the plan of a policy that answers prompts.
      spec: of one environment.
    """
    columns = spec.observations["prompt"].shape[-1] + spec.actions.shape[-1] - 1
    loops = (op for op in policy.program.walk() if op.name == "while")
    return max(
        sum(x.nbytes for x in loop.inputs if len(x.shape) == 4 and x.shape[2] == columns)
        for loop in loops
    )
