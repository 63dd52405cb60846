"""Writes optimizers.safetensors: 100 steps of PyTorch's optimizers on a small problem in f64, and the rates of its schedules, for
test_optimizers.c. python3 make_optimizers.py."""
import fnmatch
import os
import warnings

import numpy as np
import torch
from safetensors.numpy import save_file
from torch.nn import functional as F
from torch.optim import SGD, Adagrad, Adam, AdamW, RMSprop
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, LinearLR, SequentialLR, StepLR

import draw

HERE = os.path.dirname(os.path.abspath(__file__))
STEPS = 100
SHAPES = {"fc1.weight": (7, 5), "fc1.bias": (7,), "norm.weight": (7,), "norm.bias": (7,), "fc2.weight": (3, 7), "fc2.bias": (3,)}
NO_DECAY = ("fc1.bias", "norm.weight", "norm.bias", "fc2.bias")
OUT = {}


class Lion(torch.optim.Optimizer):
    """Algorithm 2 of "Symbolic Discovery of Optimization Algorithms" (Chen et al. 2023); PyTorch has none."""

    def __init__(self, params, lr, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                m = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                c = beta1 * m + (1 - beta1) * p.grad
                p -= group["lr"] * (torch.sign(c) + group["weight_decay"] * p)
                m.copy_(beta2 * m + (1 - beta2) * p.grad)


def parameters():
    made = {}
    for name, shape in SHAPES.items():
        u = draw.plain(draw.seed_of(name), *shape) / 2
        made[name] = torch.from_numpy(u + 1 if name == "norm.weight" else u).requires_grad_()
    return made


def loss_of(p, step):
    x = torch.from_numpy(draw.plain(1000 + step, 6, 5))
    target = torch.from_numpy(draw.plain(2000 + step, 6, 3)) + x[:, :3]
    h = torch.tanh(F.layer_norm(F.linear(x, p["fc1.weight"], p["fc1.bias"]), (7,), p["norm.weight"], p["norm.bias"]))
    return F.mse_loss(F.linear(h, p["fc2.weight"], p["fc2.bias"]), target)


def run(name, kind, lr, clip=0.0, split=None, frozen=(), **settings):
    """split maps a parameter's name to the settings of its group."""
    p = parameters()
    trained = {n: t for n, t in p.items() if n not in frozen}
    groups = [{"params": [t], **(split(n) if split else {})} for n, t in trained.items()]
    optimizer = kind(groups, lr=lr, **settings)
    losses, norms = [], []
    for step in range(1, STEPS + 1):
        for group in optimizer.param_groups:  # a rate that moves, as a schedule's does
            group["lr"] = group.setdefault("base", group["lr"]) * (1 - 0.005 * step)
        loss = loss_of(p, step)
        optimizer.zero_grad()
        loss.backward()
        if clip:
            norms.append(torch.nn.utils.clip_grad_norm_(list(trained.values()), clip).item())
        optimizer.step()
        losses.append(loss.item())
    OUT[name + "/losses"] = np.array(losses)
    if clip:
        OUT[name + "/norms"] = np.array(norms)
    for n, t in p.items():
        OUT[f"{name}/{n}"] = t.detach().numpy().copy()


def no_decay(value):
    return lambda n: {"weight_decay": 0.0 if n in NO_DECAY else value}


def grouped(n):
    """The groups of test_optimizers.c; the first that matches counts. Other norms and biases do not decay."""
    for pattern, scale, decay in (("fc1.*", 0.1, 0.3), ("*.bias", 2.0, None), ("norm.w*", 0.5, 0.02)):
        if fnmatch.fnmatchcase(n, pattern):
            own = 0.0 if n in NO_DECAY else 0.1
            return {"lr": 1e-2 * scale, "weight_decay": own if decay is None else decay}
    return no_decay(0.1)(n)


run("sgd", SGD, 0.05)
run("sgd_momentum", SGD, 0.02, momentum=0.9)
run("sgd_dampening", SGD, 0.05, momentum=0.8, dampening=0.3)
run("sgd_nesterov", SGD, 0.02, momentum=0.9, nesterov=True)
run("sgd_decay", SGD, 0.02, momentum=0.9, weight_decay=0.05)
run("sgd_nesterov_decay", SGD, 0.02, momentum=0.9, nesterov=True, split=no_decay(0.05))
run("sgd_clip", SGD, 0.1, momentum=0.5, clip=0.1)
run("adam", Adam, 1e-2)
run("adam_decay", Adam, 1e-2, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1)
run("adam_clip", Adam, 1e-2, clip=0.05)
run("adam_clip_never", Adam, 1e-2, clip=1000.0)
run("adamw", AdamW, 1e-2, weight_decay=0.1)
run("adamw_no_decay", AdamW, 1e-2, betas=(0.95, 0.98), split=no_decay(0.1))
run("adamw_groups", AdamW, 1e-2, split=grouped)
run("adam_frozen", Adam, 1e-2, frozen=("fc1.weight", "fc1.bias"))
run("lion", Lion, 1e-3)
run("lion_decay", Lion, 2e-3, betas=(0.8, 0.95), weight_decay=0.1)
run("lion_clip", Lion, 1e-3, clip=0.05)
run("lion_groups", Lion, 1e-2, split=grouped)
run("rmsprop", RMSprop, 2e-3)
run("rmsprop_decay", RMSprop, 2e-3, alpha=0.9, eps=1e-6, weight_decay=0.1)
run("rmsprop_momentum", RMSprop, 1e-3, momentum=0.9)
run("rmsprop_centered", RMSprop, 2e-3, centered=True)
run("rmsprop_all", RMSprop, 1e-3, alpha=0.95, eps=1e-7, momentum=0.8, centered=True, clip=0.1, split=no_decay(0.05))
run("rmsprop_groups", RMSprop, 1e-2, split=grouped)
run("adagrad", Adagrad, 5e-2)
run("adagrad_decay", Adagrad, 5e-2, lr_decay=0.02, eps=1e-6, weight_decay=0.1)
run("adagrad_initial", Adagrad, 1e-1, initial_accumulator_value=0.1, clip=0.2)
run("adagrad_groups", Adagrad, 1e-2, split=grouped)
run("lion_frozen", Lion, 1e-3, frozen=("fc1.weight", "fc1.bias"))


def given(name, kind, lr, **settings):
    """Gradients that do not depend on the parameters, so that rounding in f32 is not amplified."""
    p = torch.from_numpy(draw.plain(7, 203)).requires_grad_()
    optimizer = kind([p], lr=lr, **settings)
    for step in range(1, STEPS + 1):
        optimizer.param_groups[0]["lr"] = lr * (1 - 0.005 * step)
        p.grad = torch.from_numpy(draw.plain(3000 + step, 203))
        optimizer.step()
    OUT["given/" + name] = p.detach().numpy().copy()


given("sgd", SGD, 1e-2, momentum=0.9, weight_decay=0.1)
given("adam", Adam, 1e-3, weight_decay=0.1)
given("adamw", AdamW, 1e-3, weight_decay=0.1)
given("lion", Lion, 1e-3, weight_decay=0.1)
given("rmsprop", RMSprop, 1e-3, weight_decay=0.1)
given("rmsprop_momentum", RMSprop, 1e-3, momentum=0.9)
given("rmsprop_all", RMSprop, 1e-3, alpha=0.95, momentum=0.8, centered=True, weight_decay=0.05)
given("adagrad", Adagrad, 1e-2, lr_decay=0.02, weight_decay=0.1)
given("adagrad_initial", Adagrad, 1e-2, initial_accumulator_value=0.1)


def rates(name, make, steps=40):
    optimizer = SGD([torch.zeros(1, requires_grad=True)], lr=0.3)
    scheduler = make(optimizer)
    seen = []
    for _ in range(steps):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    OUT["schedule/" + name] = np.array(seen)


def warm(steps, then):
    """From lr / steps to lr, then another."""
    def make(o):
        return SequentialLR(o, [LinearLR(o, 1 / steps, 1, steps - 1), then(o)], [steps])
    return make


warnings.simplefilter("ignore")
rates("constant", lambda o: ConstantLR(o, 1, 1))
rates("step", lambda o: StepLR(o, 7, 0.3))
rates("cosine", lambda o: CosineAnnealingLR(o, 40))
rates("cosine_minimum", lambda o: CosineAnnealingLR(o, 40, 0.03))
rates("warm_constant", warm(5, lambda o: ConstantLR(o, 1, 1)))
rates("warm_step", warm(6, lambda o: StepLR(o, 9, 0.5)))
rates("warm_cosine", warm(8, lambda o: CosineAnnealingLR(o, 32, 0.015)))
save_file(OUT, os.path.join(HERE, "optimizers.safetensors"))
os.chmod(os.path.join(HERE, "optimizers.safetensors"), 0o644)
print(len(OUT), "arrays,", sum(v.nbytes for v in OUT.values()), "bytes")
