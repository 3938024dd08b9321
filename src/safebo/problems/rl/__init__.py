"""Six reinforcement-learning policies in environments that have changed since they were trained. Needs the extra `rl` to run."""

from safebo.problems.rl.problem import RLProblem

__all__ = ["RLProblem"]
