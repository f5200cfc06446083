"""Fails if a test run skipped anything: a skipped torch or jax test is a feature nobody tested. Arguments: junit xml files."""

import sys
import xml.etree.ElementTree as ET

cases = [case for file in sys.argv[1:] for case in ET.parse(file).iter("testcase")]
skipped = [f"{case.get('classname')}.{case.get('name')}" for case in cases if case.find("skipped") is not None]
interop = [case for case in cases if "interop" in (case.get("classname") or "")]
print(f"{len(cases)} tests, {len(interop)} of them with torch or jax, {len(skipped)} skipped", *skipped, sep="\n  ")
sys.exit(bool(skipped) or len(interop) == 0)
