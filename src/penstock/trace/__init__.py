"""What a run did: its losses, sample by sample; which records are to blame for them; and proof of which records it was given."""

from penstock.trace.blame import Blame, Spike, StepBlame, Suspect, blame_run, blame_step, find_spikes
from penstock.trace.certificate import Certificate, certify, certify_run
from penstock.trace.deviation import Comparison, Reason, compare
from penstock.trace.loss_log import ABSENT, MISSING, LossLog, LossLogWarning, segment_losses
from penstock.trace.loss_table import LossTable
from penstock.trace.run import RecordKey, Run, Visits

__all__ = [
    "ABSENT",
    "MISSING",
    "Blame",
    "Certificate",
    "Comparison",
    "LossLog",
    "LossLogWarning",
    "LossTable",
    "Reason",
    "RecordKey",
    "Run",
    "Spike",
    "StepBlame",
    "Suspect",
    "Visits",
    "blame_run",
    "blame_step",
    "certify",
    "certify_run",
    "compare",
    "find_spikes",
    "segment_losses",
]
