"""The web page: ``penstock view`` shows data, orders and running loaders. Nothing here runs what data says.

``penstock.view.StatsLog`` writes the file that ``penstock view --watch`` draws.
"""

from penstock.view.server import StatsLog

__all__ = ["StatsLog"]
