"""Where everything is that ``import penstock`` offers: the modules of its names, and of the methods that layers add to sources."""

MODULES = {
    "LZ4": "penstock.schema",
    "Balance": "penstock.order.balance",
    "Deflate": "penstock.schema",
    "Field": "penstock.schema",
    "Loader": "penstock.loader.loader",
    "LossLog": "penstock.trace.loss_log",
    "PenstockError": "penstock.errors",
    "Phase": "penstock.order.phase",
    "Ragged": "penstock.batch",
    "Raw": "penstock.schema",
    "Shard": "penstock.order.position",
    "Source": "penstock.records",
    "Stream": "penstock.stream.stream",
    "Zstd": "penstock.schema",
    "add_field": "penstock.store.maintenance",
    "convert": "penstock.conversion.convert",
    "create": "penstock.store.writer",
    "gc": "penstock.store.maintenance",
    "load_mixture": "penstock.stream.mixture_file",
    "mix": "penstock.stream.mixed",
    "open": "penstock.formats.open",
    "plan": "penstock.run_plan",
    "rebalance": "penstock.store.maintenance",
    "train_dictionary": "penstock.schema",
    "verify": "penstock.store.maintenance",
    "verify_resume": "penstock.loader.resume_check",
}
"""The public names; a module is loaded when one of its names is first used."""

METHODS = {
    "cast": "penstock.algebra.view",
    "map": "penstock.algebra.view",
    "pick": "penstock.algebra.view",
    "select": "penstock.algebra.view",
    "design": "penstock.stream.stream",
    "in_order": "penstock.stream.stream",
    "sample": "penstock.stream.stream",
    "shuffle": "penstock.stream.stream",
    "slide": "penstock.stream.stream",
    "digest": "penstock.conversion.reading",
    "split": "penstock.conversion.split",
}
"""Methods of :class:`penstock.Source` by the layer that owns them (``records.provide``)."""
