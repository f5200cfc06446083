"""Measurements, plots and one self-contained page: how fast a loader is, how well an order mixes, whether a machine is fit.

Nothing here is about a terminal. matplotlib is imported when a plot is made.
"""

from penstock.report.doctor import Finding, examine
from penstock.report.mixing import Mixing, field_labels, measure_order, sorted_labels
from penstock.report.page import Figure, Picture, Section, Table, Tile, make_page, write_page, write_plots
from penstock.report.speed import Speed, measure_loader
from penstock.report.trainer import Kills, train, verify_kills

__all__ = [
    "Figure",
    "Finding",
    "Kills",
    "Mixing",
    "Picture",
    "Section",
    "Speed",
    "Table",
    "Tile",
    "examine",
    "field_labels",
    "make_page",
    "measure_loader",
    "measure_order",
    "sorted_labels",
    "train",
    "verify_kills",
    "write_page",
    "write_plots",
]
