"""Mixtures and schedules in the configuration form of other systems, such as Megatron-LM, NeMo or OLMo-core."""

from aioli.export.schedule import Phase, Schedule
from aioli.export.systems import SYSTEMS, System, block, system

__all__ = ["SYSTEMS", "Phase", "Schedule", "System", "block", "system"]
