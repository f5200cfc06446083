"""Ranks of torchrun and of torch.multiprocessing as forks of one process, so that torch and accelerate are imported once.

The launchers are those of torch: the elastic agent that is behind torchrun, and ``start_processes`` that is behind ``spawn``. Only
their ``start_method`` differs. A campaign starts the programs themselves.

Usage: python forked_ranks.py <directory>
"""

import os
import sys
from pathlib import Path


def main(place: Path) -> None:
    """Both; a rank that fails is raised here."""
    # Imported here and not above: a spawned reader of a rank imports this file again.
    import accelerate_ranks
    import datasets  # noqa: F401  # which accelerate imports
    import spawn_ranks
    import torch._dynamo  # noqa: F401  # which optimizers import
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch
    from torch.multiprocessing import start_processes

    ranks = LaunchConfig(
        1,
        1,
        nproc_per_node=2,
        run_id="ranks",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        start_method="fork",
        max_restarts=0,
    )
    spawned = place / "spawned"
    spawned.mkdir()
    start_processes(spawn_ranks.run, (spawned, False), nprocs=2, start_method="fork")
    elastic_launch(ranks, accelerate_ranks.main)(place)


if __name__ == "__main__":
    sys.path.insert(0, os.fspath(Path(__file__).parent))
    main(Path(sys.argv[1]))
