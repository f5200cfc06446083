"""Engines that build data sets on many machines. Each is imported only when its module is."""
