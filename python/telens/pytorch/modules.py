"""The modules of the C++ core (core/modules/module_list.h) as Python classes."""

from telens import _C
from telens.pytorch.module import make_class

__all__ = []

for _module_type in _C.module_types():
    globals()[_module_type.name] = make_class(_module_type, __name__)
    __all__ += [_module_type.name]
