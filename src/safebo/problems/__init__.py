"""Problems with a known answer. A problem never imports the optimizer."""

from safebo.problems.synthetic import RKHSProblem

__all__ = ["RKHSProblem"]
