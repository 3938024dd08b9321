"""The shortest complete loop: tune two parameters of your own experiment without leaving the safe region."""

from safebo import Box, Matern, SafeOptimizer


def measure(params):  # your experiment: the higher the better, unsafe below 0
    return 1.0 - (params["kp"] - 3.0) ** 2 / 4.0 - 4.0 * (params["kd"] - 0.4) ** 2


opt = SafeOptimizer(Box({"kp": (0.0, 5.0), "kd": (0.0, 1.0)}), threshold=0.0, kernel=Matern(nu=1.5, lengthscale=0.3))
start = {"kp": 2.0, "kd": 0.3}
opt.tell(start, measure(start))  # at least one safe measurement to start from
while opt.state.step < 12 and (trial := opt.ask()) is not None:
    opt.tell(trial, measure(trial.params))
print(opt.best())
