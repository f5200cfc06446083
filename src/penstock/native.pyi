from penstock import _core as _core
